"""A compiled function that writes to a transposed view of its input (pytorch/xla#5179)."""

import torch


def step(a):
    b = a.t()
    b.mul_(2.0)
    return b


def program(device):
    call = torch.compile(step, backend="openxla") if device.type == "xla" else step
    x = torch.arange(6.0).view(2, 3).to(device)
    return call(x), x
