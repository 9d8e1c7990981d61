"""Quotients of complex numbers, by complex numbers and by real ones, with gradients."""

import torch


def program(device):
    a, b = (torch.randn(3, 2).to(device).requires_grad_() for _ in range(2))
    z, w = torch.view_as_complex(a), torch.view_as_complex(b)
    (z / w).real.sum().backward()
    return z.detach() / w.detach(), z.detach() / 2, 2 / z.detach(), a.grad, b.grad
