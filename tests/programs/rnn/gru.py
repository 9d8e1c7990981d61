"""A GRU of two layers with a first state."""

import torch
from torch import nn


def program(device):
    model = nn.GRU(4, 5, num_layers=2).to(device)
    x, h0 = torch.randn(6, 3, 4).to(device).requires_grad_(), torch.randn(2, 3, 5).to(device)
    out, h = model(x, h0)
    (out.square().sum() + h.sum()).backward()
    return out, h, x.grad, [p.grad for p in model.parameters()]
