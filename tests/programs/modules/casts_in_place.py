"""module.bfloat16(), .half() and .float() keep requires_grad, hooks and buffers of integers."""

import torch
from torch import nn

TOLERANCE = 3e-2


def program(device):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
    model[0].bias.requires_grad_(False)
    fired = []
    model[0].weight.register_hook(lambda g: fired.append(str(g.dtype)))
    model.bfloat16()
    model(torch.randn(5, 3).bfloat16().to(device)).sum().backward()
    model.float()
    model(torch.randn(5, 3).to(device)).sum().backward()
    return fired, model[0].bias.requires_grad, str(model[1].num_batches_tracked.dtype), model[1].running_mean
