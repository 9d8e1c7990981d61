"""Assignments to slices that begin before a tensor, and their gradients."""

import torch


def program(device):
    x = torch.zeros(3, 4).to(device)
    v = torch.ones(3, 2).to(device).requires_grad_()
    x[:, -10:2] = v
    y = torch.slice_scatter(x.detach(), v, dim=1, start=-20, end=2)
    (x * 3).sum().backward()
    return x, y, v.grad
