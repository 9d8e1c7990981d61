"""A compiled training step with the optimizer in it."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(3, 4).to(device)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    call = torch.compile(step, backend="openxla") if device.type == "xla" else step
    return [call() for _ in range(3)], list(model.parameters())
