"""Modules and tensors made under torch.device, or with a default device."""

import torch
from torch import nn


def program(device):
    with device:
        model = nn.Linear(3, 2)
        x = torch.ones(4, 3)
        mask = torch.arange(4) > 1
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    return model(x)[mask], x.device.type == device.type, model.weight.device.type == device.type
