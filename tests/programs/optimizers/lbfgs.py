"""LBFGS with a closure and a line search, whose conditions read the loss."""

import torch
from torch import nn

TOLERANCE = 1e-3


def program(device):
    weight = nn.Parameter(torch.zeros(3).to(device))
    x, y = torch.randn(10, 3).to(device), torch.randn(10).to(device)
    optimizer = torch.optim.LBFGS([weight], max_iter=5, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = (x @ weight - y).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    return loss, weight
