"""Convolution, batch norm and a linear layer under autocast (pytorch/xla#9014)."""

import torch
from torch import nn

TOLERANCE = 4e-2


def program(device):
    conv, norm, linear = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
    model = nn.ModuleList([conv, norm, linear]).to(device)
    x = torch.randn(4, 1, 8, 8).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = linear(norm(conv(x)).relu().mean((2, 3)))
        loss = out.float().square().mean()
    loss.backward()
    return loss, [str(p.grad.dtype) for p in model.parameters()], linear.weight.grad
