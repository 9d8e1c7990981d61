"""A compiled function with autocast in it (pytorch/xla#6511)."""

import torch

TOLERANCE = 3e-2


def multiply(x, w):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return torch.nn.functional.linear(x, w)


def program(device):
    call = torch.compile(multiply, backend="openxla") if device.type == "xla" else multiply
    return call(torch.randn(3, 4).to(device), torch.randn(5, 4).to(device))
