"""Layers under inference_mode: linear, normalization, convolution, attention, views and writes to slices."""

import torch
import torch.nn.functional as F
from torch import nn


def program(device):
    linear, norm, conv = nn.Linear(4, 4).to(device), nn.LayerNorm(4).to(device), nn.Conv1d(2, 3, 3).to(device)
    x = torch.randn(2, 2, 4).to(device)
    with torch.inference_mode():
        y = norm(linear(x)).view(2, 2, 2, 2).transpose(1, 2)
        attended = F.scaled_dot_product_attention(y, y, y, is_causal=True)
        cache = torch.zeros(2, 2, 4, device=device)
        cache[:, 1:] = x[:, :1]
        return y, attended, conv(x), cache, cache.is_inference()
