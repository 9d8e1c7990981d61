"""Causal attention and its gradients."""

import torch
import torch.nn.functional as F


def program(device):
    q, k, v = (torch.randn(2, 3, 6, 8).to(device).requires_grad_() for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.square().sum().backward()
    return out, q.grad, k.grad, v.grad
