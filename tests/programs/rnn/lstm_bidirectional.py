"""A bidirectional LSTM of two layers, its states and its gradients."""

import torch
from torch import nn


def program(device):
    model = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True).to(device)
    x = torch.randn(3, 6, 4).to(device).requires_grad_()
    out, (h, c) = model(x)
    (out.sum() + h.square().sum() + c.sum()).backward()
    return out, h, c, x.grad, [p.grad for p in model.parameters()]
