"""A ring of positions, written by index_put with the remainder of a position."""

import torch


def program(device):
    cache = torch.zeros(4, 3, device=device)
    for step in range(9):
        position = torch.tensor([step], device=device) % 4
        cache[position] = torch.full((1, 3), float(step), device=device)
    return torch.roll(cache, -(9 % 4), 0)
