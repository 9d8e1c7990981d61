"""masked_select, masked_scatter and boolean indexing on both sides of an assignment."""

import torch


def program(device):
    x = torch.arange(12.0).view(3, 4).to(device)
    mask = x % 3 == 0
    picked = torch.masked_select(x, mask)
    filled = x.masked_scatter(mask, -picked.flip(0))
    x[mask] = picked * 2
    x[x > 10] -= 1
    return picked, filled, x, x[mask.any(1)]
