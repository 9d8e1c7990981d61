"""randperm and shuffled indices are permutations; randint keeps to its bounds."""

import torch


def program(device):
    p = torch.randperm(50, device=device)
    i = torch.randint(3, 7, (200,), device=device)
    return p.sort().values, p.dtype, i.min(), i.max(), i.dtype, bool((p == torch.arange(50, device=device)).all())
