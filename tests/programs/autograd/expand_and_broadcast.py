"""Gradients of broadcast operands are summed, of expanded views as well."""

import torch


def program(device):
    a, b = torch.randn(3, 1).to(device).requires_grad_(), torch.randn(4).to(device).requires_grad_()
    c = torch.randn(1).to(device).requires_grad_()
    ((a * b + c) * a.expand(3, 4)).sum().backward()
    return a.grad, b.grad, c.grad
