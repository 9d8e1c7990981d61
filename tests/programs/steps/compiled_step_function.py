"""torch_xla.compile of a training step."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    if device.type == "xla":
        import torch_xla

        step = torch_xla.compile(step)
    return [step(torch.full((2, 4), float(i)).to(device)) for i in range(3)], list(model.parameters())
