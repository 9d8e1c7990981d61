"""Batch norm in evaluation mode with gradients, and frozen in a model that trains."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).to(device)
    model(torch.randn(4, 1, 6, 6).to(device))
    model[1].eval()
    x = torch.randn(4, 1, 6, 6).to(device).requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return y, x.grad, [p.grad for p in model.parameters()], model[1].running_var
