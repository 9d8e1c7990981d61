"""A compiled function with a condition on a value and a print: dynamo breaks its graph there."""

import torch


def branch(x):
    y = x * 2
    if y.sum() > 0:
        y = y - 1
    total = y.sum().item()
    return y * total


def program(device):
    call = torch.compile(branch, backend="openxla") if device.type == "xla" else branch
    return call(torch.ones(3).to(device)), call(-torch.ones(3).to(device))
