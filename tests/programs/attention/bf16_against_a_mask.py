"""Attention of bfloat16 with an additive mask of its smallest number."""

import torch
import torch.nn.functional as F


def program(device):
    q, k, v = (torch.randn(2, 2, 16, 32).bfloat16().to(device).requires_grad_() for _ in range(3))
    mask = torch.full((16, 16), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16).triu(1).to(device)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out.float().square().sum().backward()
    return out, q.grad, k.grad, v.grad
