"""Integers above 2^24 and 2^53 in sums, products, remainders and floor division (pytorch/xla#6750)."""

import torch


def program(device):
    x = torch.tensor([100_000_001, 2**53 + 1, -(2**40) - 7]).to(device)
    return x // 3, x % 10, x * 3, x.sum(), x.max(), torch.div(x, 7, rounding_mode="trunc"), x.abs(), x.sort().values
