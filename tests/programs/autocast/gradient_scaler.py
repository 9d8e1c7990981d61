"""A GradScaler that is off, as training code has it for bfloat16."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    loss = model(torch.ones(3, 4).to(device)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return list(model.parameters()), scaler.get_scale()
