"""grad with allow_unused, materialized gradients, and inputs that were not reached."""

import torch


def program(device):
    a, b = (torch.ones(2).to(device).requires_grad_() for _ in range(2))
    loss = (a * 2).sum()
    none = torch.autograd.grad(loss, [a, b], allow_unused=True, retain_graph=True)
    zeros = torch.autograd.grad(loss, [a, b], materialize_grads=True)
    return none[0], none[1] is None, zeros, b.grad is None
