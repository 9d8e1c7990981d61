"""Activations of huge, tiny and infinite numbers, with their gradients."""

import torch
import torch.nn.functional as F

NAMES = ("gelu", "silu", "mish", "softplus", "logsigmoid", "elu", "selu", "hardswish", "hardsigmoid", "tanhshrink")
VALUES = [-1e30, -100.0, -3.0, -1e-30, -0.0, 0.0, 1e-30, 3.0, 100.0, 1e30]


def program(device):
    results = []
    for name in NAMES:
        x = torch.tensor(VALUES).to(device).requires_grad_()
        y = getattr(F, name)(x)
        y.sum().backward()
        results += [y, x.grad]
    return results
