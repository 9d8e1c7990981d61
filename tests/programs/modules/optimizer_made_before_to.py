"""An optimizer that is made before the model is sent to the device goes on to train it."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to(device)
    before = model.weight.detach().clone()
    model(torch.ones(2, 3).to(device)).sum().backward()
    optimizer.step()
    return (before - model.weight).cpu()
