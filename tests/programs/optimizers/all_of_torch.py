"""A step or three of every other optimizer of torch."""

import torch
from torch import nn

KINDS = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")


def program(device):
    results = []
    start = torch.randn(5, 4)
    x = torch.randn(8, 4).to(device)
    for kind in KINDS:
        weight = nn.Parameter(start.to(device).clone())
        optimizer = getattr(torch.optim, kind)([weight])
        for _ in range(3):
            optimizer.zero_grad()
            (x @ weight.t()).square().mean().backward()
            optimizer.step()
        results.append(weight)
    return results
