"""Hooks of tensors that change a gradient, retain_grad, and hooks after accumulation."""

import torch


def program(device):
    x = torch.ones(3).to(device).requires_grad_()
    seen = []
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    y = x * 3
    y.retain_grad()
    (y**2).sum().backward()
    (x * 1).sum().backward()
    return x.grad, y.grad, seen
