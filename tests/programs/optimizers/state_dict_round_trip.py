"""An optimizer's state is saved in the middle and loaded into a new one: training goes on as if nothing happened."""

import copy

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 3).to(device)
    x = torch.randn(8, 4).to(device)

    def train(optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    first = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(first, 2)
    torch.save(first.state_dict(), "optimizer.pt")
    second = torch.optim.AdamW(model.parameters(), lr=1.0)
    second.load_state_dict(torch.load("optimizer.pt", weights_only=True))
    state = copy.deepcopy(second.state_dict()["state"][0])
    train(second, 2)
    devices = {value.device.type == device.type for key, value in state.items() if key != "step"}
    return list(model.parameters()), devices == {True}
