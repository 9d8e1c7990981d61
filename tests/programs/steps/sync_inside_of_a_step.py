"""A sync between forward and backward changes nothing."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    loss = model(torch.ones(2, 4).to(device)).square().sum()
    if device.type == "xla":
        import torch_xla

        torch_xla.sync()
    loss.backward()
    if device.type == "xla":
        torch_xla.sync(wait=True)
    return loss, [p.grad for p in model.parameters()]
