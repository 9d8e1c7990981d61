"""A state dict is saved from the device and loaded into a new model on it, in place and by assignment."""

import torch
from torch import nn


def make():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def program(device):
    model = make().to(device)
    model(torch.randn(6, 3).to(device)).sum().backward()
    torch.save(model.state_dict(), "model.pt")
    copied, assigned = make().to(device), make().to(device)
    copied.load_state_dict(torch.load("model.pt", weights_only=True, map_location="cpu"))
    assigned.load_state_dict(torch.load("model.pt", weights_only=True), assign=True)
    x = torch.ones(2, 3).to(device)
    return [m.eval()(x) for m in (model, copied, assigned)], {p.device.type for p in assigned.parameters()} == {
        device.type
    }
