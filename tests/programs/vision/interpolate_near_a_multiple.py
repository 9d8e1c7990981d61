"""Nearest interpolation by a scale whose output is as long as the input, or twice as long."""

import itertools

import torch
import torch.nn.functional as F


def program(device):
    results = []
    for scale, dims in itertools.product((1.3, 1.6, 2.1, 2.3), (1, 2, 3)):
        x = torch.arange(3.0**dims).view(1, 1, *[3] * dims).to(device).requires_grad_()
        y = F.interpolate(x, scale_factor=scale, mode="nearest")
        (y * torch.arange(1.0, y.numel() + 1).view_as(y).to(device)).sum().backward()
        results += [y, x.grad]
    return results
