"""SGD with Nesterov momentum, weight decay and a schedule."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    x = torch.randn(8, 4).to(device)
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
    return list(model.parameters()), optimizer.param_groups[0]["lr"]
