"""Means and deviations of normal, uniform, exponential and Bernoulli draws."""

import torch

TOLERANCE = 6e-2


def program(device):
    n = 40_000
    x = torch.empty(n, device=device)
    draws = [
        torch.randn(n, device=device).square(),
        torch.rand(n, device=device),
        x.clone().normal_(2.0, 0.5),
        x.clone().uniform_(-1, 3),
        x.clone().exponential_(2.0),
        torch.bernoulli(torch.full((n,), 0.3, device=device)),
        torch.randint(0, 10, (n,), device=device).float(),
        torch.randn(n, device=device, dtype=torch.bfloat16).float().abs(),
    ]
    return [d.mean() for d in draws], [d.std() for d in draws[1:]]
