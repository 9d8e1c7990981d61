"""foreach=True, and clip_grad_norm_ with it."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    x, norms = torch.randn(8, 4).to(device), []
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True))
        optimizer.step()
    return list(model.parameters()), norms
