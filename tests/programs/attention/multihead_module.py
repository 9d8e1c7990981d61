"""nn.MultiheadAttention with a padding mask, averaged weights, and another width of keys."""

import torch
from torch import nn


def program(device):
    model = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True).to(device)
    q, k, v = torch.randn(2, 3, 8).to(device), torch.randn(2, 5, 6).to(device), torch.randn(2, 5, 4).to(device)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5]).to(device)
    out, weights = model(q, k, v, key_padding_mask=padding)
    out.sum().backward()
    return out, weights, [p.grad for p in model.parameters()]
