"""Four micro-batches, a loss divided by four, one step; the same as one batch."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(6, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 6)
    for micro in batch.chunk(4):
        (model(micro.to(device)).square().mean() / 4).backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return gradient, model.weight, model.weight.grad
