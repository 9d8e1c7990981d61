"""Shapes that depend on values: nonzero, unique with counts, where, argwhere and bincount."""

import torch


def program(device):
    x = torch.tensor([[0, 3, 3], [1, 0, 3]]).to(device)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    runs = torch.unique_consecutive(x.flatten())
    return x.nonzero(), values, inverse, counts, runs, torch.where(x > 0), torch.argwhere(x), x.flatten().bincount()
