"""Steps with gradients that are not finite are skipped, as a GradScaler does it."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    skipped = 0
    for scale in (1.0, float("inf"), 2.0, float("nan")):
        optimizer.zero_grad()
        (model(torch.ones(2, 4).to(device)).mean() * scale).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        else:
            skipped += 1
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    return skipped, list(model.parameters())
