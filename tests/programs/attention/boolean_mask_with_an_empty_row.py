"""A padding mask that leaves a query nothing to attend to."""

import torch
import torch.nn.functional as F


def program(device):
    q, k, v = (torch.randn(1, 2, 4, 8).to(device) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(device))
