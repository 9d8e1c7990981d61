"""A compiled function writes to four slices of one cache (pytorch/xla#8832)."""

import torch


def write(cache, x):
    for row in range(4):
        cache[row].add_(x * (row + 1))
    return cache.sum()


def program(device):
    cache, x = torch.zeros(4, 3, device=device), torch.ones(3, device=device)
    call = torch.compile(write, backend="openxla") if device.type == "xla" else write
    total = call(cache, x)
    return total, cache
