"""fused=True, which is the default of transformers' Trainer."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    x = torch.randn(8, 4).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())
