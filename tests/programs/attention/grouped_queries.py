"""Grouped-query attention, by enable_gqa and by repeat_interleave."""

import torch
import torch.nn.functional as F


def program(device):
    q = torch.randn(2, 4, 5, 8).to(device)
    k, v = (torch.randn(2, 2, 5, 8).to(device) for _ in range(2))
    by_flag = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    return by_flag, F.scaled_dot_product_attention(q, k, v, is_causal=True)
