"""Adam with capturable=True and a learning rate that is a tensor, so that nothing is compiled again."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 3).to(device)
    lr = torch.tensor(1e-2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, capturable=device.type != "cpu")
    x = torch.randn(8, 4).to(device)
    for step in range(3):
        lr.fill_(1e-2 / (step + 1))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())
