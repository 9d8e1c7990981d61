"""A compiled module, forward and backward, called with two shapes."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    call = torch.compile(model, backend="openxla") if device.type == "xla" else model
    outs = []
    for rows in (2, 5, 2):
        out = call(torch.ones(rows, 4).to(device))
        out.square().sum().backward()
        outs.append(out)
    return outs, [p.grad for p in model.parameters()]
