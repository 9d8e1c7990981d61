"""Saved tensors are moved to the CPU and back by save_on_cpu, and packed by hooks."""

import torch


def program(device):
    x = torch.randn(4).to(device).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = x.exp() * x.sin()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t.clone(), lambda t: t):
        z = y.square()
    z.sum().backward()
    return x.grad, len(packed) > 0
