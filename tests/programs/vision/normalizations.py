"""Batch, group, instance, layer and RMS normalization in training, with gradients and running statistics."""

import torch
from torch import nn


def program(device):
    results = []
    for layer in (
        nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.LayerNorm([4, 5, 5]), nn.RMSNorm(5), nn.LocalResponseNorm(2), nn.BatchNorm2d(4, momentum=None),
    ):  # fmt: skip
        layer.to(device)
        x = torch.randn(3, 4, 5, 5).to(device).requires_grad_()
        y = layer(x)
        (y * torch.arange(5.0).to(device)).sum().backward()
        results += [y, x.grad, [p.grad for p in layer.parameters()], list(layer.buffers())]
    return results
