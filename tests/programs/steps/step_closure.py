"""Closures that run after a step see its values; xm.optimizer_step takes it."""

import torch
from torch import nn


def program(device):
    model, seen = nn.Linear(2, 1).to(device), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2).to(device)).square().mean()
        loss.backward()
        if device.type == "xla":
            import torch_xla
            import torch_xla.core.xla_model as xm

            xm.add_step_closure(lambda value: seen.append(value.item()), args=(loss,))
            xm.optimizer_step(optimizer)
            torch_xla.sync()
        else:
            optimizer.step()
            seen.append(loss.item())
    return seen, model.weight
