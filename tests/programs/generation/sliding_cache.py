"""A cache of the last positions, which is cut by a negative start that may be longer than what there is."""

import torch


def program(device):
    cache, seen = torch.zeros(1, 2, 0, 4, device=device), []
    for step in range(6):
        new = torch.full((1, 2, 2, 4), float(step), device=device)
        cache = torch.cat([cache, new], dim=2)[:, :, -5:]
        seen.append(cache.sum((0, 1, 3)))
    return seen
