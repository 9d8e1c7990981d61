"""A compiled function that changes its input and returns another view of it."""

import torch


def step(x):
    x.add_(1)
    return x.t(), x[0]


def program(device):
    x = torch.arange(6.0).view(2, 3).to(device)
    call = torch.compile(step, backend="openxla") if device.type == "xla" else step
    a, b = call(x)
    call(x)
    return x, a.clone(), b.clone()
