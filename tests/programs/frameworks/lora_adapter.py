"""LoRA: frozen weights, two small matrices, a merge and its undoing."""

import torch
from torch import nn


def program(device):
    base = nn.Linear(6, 4).to(device).requires_grad_(False)
    a, b = nn.Parameter(torch.randn(2, 6).to(device)), nn.Parameter(torch.zeros(4, 2).to(device))
    optimizer = torch.optim.AdamW([p for p in (a, b, *base.parameters()) if p.requires_grad], lr=1e-2)
    x = torch.randn(3, 6).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        (base(x) + x @ a.t() @ b.t() * 2).square().mean().backward()
        optimizer.step()
    before = base.weight.clone()
    with torch.no_grad():
        base.weight += 2 * (b @ a)
        merged = base(x)
        base.weight -= 2 * (b @ a)
    return a, b, merged, (base.weight - before).abs().max() < 1e-5, base.weight.grad is None
