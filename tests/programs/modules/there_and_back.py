"""A model goes to the device, to the CPU and back; its parameters are the optimizer's all the while."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    for where in (device, "cpu", device):
        model.to(where)
        optimizer.zero_grad()
        model(torch.ones(2, 3).to(where)).sum().backward()
    trained = [p is q for p, q in zip(model.parameters(), optimizer.param_groups[0]["params"], strict=True)]
    return trained, [p.grad for p in model.parameters()]
