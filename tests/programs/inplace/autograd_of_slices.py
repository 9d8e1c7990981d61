"""Writes to slices of a result that autograd follows (pytorch/xla#1718)."""

import torch
from torch import nn


def program(device):
    linear = nn.Linear(4, 6).to(device)
    x = linear(torch.randn(3, 4).to(device))
    x[:, :3] = 0
    x[:, 3:5].mul_(2)
    x[0].relu_()
    x.sum().backward()
    return x, linear.weight.grad, linear.bias.grad
