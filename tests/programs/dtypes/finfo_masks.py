"""Masks of finfo.min: sums of two of them, softmax and their dtype."""

import torch


def program(device):
    results = []
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        low = torch.finfo(kind).min
        mask = torch.zeros(3, 3, dtype=kind, device=device).masked_fill(torch.ones(3, 3).triu(1).bool().to(device), low)
        both = mask + mask
        results += [
            both.softmax(-1),
            mask.clamp(min=low),
            torch.max(both, torch.tensor(low, device=device, dtype=kind)),
        ]
    return results
