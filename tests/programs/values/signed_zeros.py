"""Minus zero: rounding, floor division, products, maximum and its sign."""

import torch


def program(device):
    x = torch.tensor([-0.0, 0.0, -0.3, 0.3]).to(device)
    results = [
        x.round(),
        x.ceil(),
        x.trunc(),
        x // 5,
        x * -1,
        torch.div(x, 5, rounding_mode="floor"),
        -x,
        x.neg().abs(),
    ]
    return [torch.signbit(y) for y in results], [1 / y for y in results[:2]]
