"""An LSTM with a projection of its hidden state."""

import torch
from torch import nn


def program(device):
    model = nn.LSTM(4, 8, proj_size=3).to(device)
    x = torch.randn(5, 2, 4).to(device)
    out, (h, c) = model(x)
    out.sum().backward()
    return out, h, c, model.weight_hr_l0.grad
