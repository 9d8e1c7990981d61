"""Gradients through where with an infinite branch that is not taken."""

import torch


def program(device):
    x = torch.tensor([0.0, 1.0, 4.0]).to(device).requires_grad_()
    safe = torch.where(x > 0, x, torch.ones_like(x))
    y = torch.where(x > 0, safe.log(), torch.zeros_like(x))
    y.sum().backward()
    z = torch.tensor([0.0, 1.0]).to(device).requires_grad_()
    torch.where(z > 0, z.log(), 0.0).sum().backward()
    return y, x.grad, z.grad
