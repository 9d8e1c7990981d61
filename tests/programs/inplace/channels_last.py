"""Tensors in channels_last: values, results of convolutions, and writes."""

import torch
from torch import nn


def program(device):
    conv = nn.Conv2d(3, 4, 3, padding=1).to(device)
    x = torch.randn(2, 3, 5, 5).to(device).to(memory_format=torch.channels_last)
    y = conv(x)
    y.sum().backward()
    z = x.clone().permute(0, 2, 3, 1)
    z[0, 0] = 1
    return y, conv.weight.grad, z, x.flatten(2).transpose(1, 2)
