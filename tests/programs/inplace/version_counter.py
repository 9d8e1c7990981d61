"""A tensor that backward needs and that was changed raises at backward."""

import torch


def program(device):
    x = torch.ones(3).to(device).requires_grad_()
    y = x.exp()
    y.add_(1)
    y.sum().backward()
    return x.grad
