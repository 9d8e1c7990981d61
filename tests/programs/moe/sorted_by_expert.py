"""Tokens sorted by expert, multiplied expert by expert, and put back in their order."""

import torch


def program(device):
    x, w = torch.randn(8, 4).to(device).requires_grad_(), torch.randn(3, 4, 4).to(device).requires_grad_()
    expert = torch.tensor([2, 0, 1, 2, 0, 0, 1, 2]).to(device)
    order = torch.argsort(expert, stable=True)
    ordered = torch.bmm(x[order].unsqueeze(1), w[expert[order]]).squeeze(1)
    out = torch.empty_like(ordered)
    out[order] = ordered
    out.square().sum().backward()
    return order, torch.argsort(order), out, x.grad, w.grad
