"""AdamW with amsgrad and maximize, in two groups of parameters."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    groups = [{"params": model[0].parameters(), "lr": 1e-2}, {"params": model[2].parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, amsgrad=True, maximize=True)
    x = torch.randn(8, 4).to(device)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())
