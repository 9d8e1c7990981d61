"""A paged cache: slots of a flat cache are written and read by a table of blocks, with padding slots of -1."""

import torch


def program(device):
    cache = torch.zeros(3, 4, 2, device=device)
    keys = torch.randn(5, 2).to(device)
    slots = torch.tensor([4, 5, 6, 0, -1], device=device)
    keep = slots >= 0
    cache.view(12, 2).index_copy_(0, slots[keep], keys[keep])
    blocks = torch.tensor([[1, 0], [2, 2]], device=device)
    return cache, cache[blocks].flatten(1, 2)
