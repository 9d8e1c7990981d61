"""torch.export of a model, and its program on the device."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    exported = torch.export.export(model, (torch.ones(2, 4),)).module()
    return exported.to(device)(torch.arange(8.0).view(2, 4).to(device))
