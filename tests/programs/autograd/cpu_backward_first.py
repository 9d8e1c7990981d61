"""A backward on the CPU before the first use of XLA (pytorch/xla#4174)."""

import torch

LATE = True


def program(device):
    w = torch.ones(2, requires_grad=True)
    (w * 2).sum().backward()
    x = torch.ones(3).to(device).requires_grad_()
    (x * 3).sum().backward()
    return w.grad, x.grad
