"""Lazy modules find their sizes on the device; ModuleDict, ParameterList and buffers."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"conv": nn.LazyConv2d(3, 3), "linear": nn.LazyLinear(2)})
        self.scales = nn.ParameterList(torch.full((1,), float(i)) for i in range(2))
        self.register_buffer("shift", torch.ones(1), persistent=False)

    def forward(self, x):
        x = self.parts["conv"](x).flatten(1)
        return self.parts["linear"](x) * self.scales[1] + self.shift


def program(device):
    model = Model().to(device)
    out = model(torch.randn(2, 1, 5, 5).to(device))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    return out.shape, model(torch.ones(2, 1, 5, 5).to(device)), sorted(model.state_dict())
