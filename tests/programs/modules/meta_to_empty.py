"""A model made on the meta device is materialized by to_empty and filled."""

import torch
from torch import nn


def program(device):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    model.to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
    return model(torch.arange(6.0).view(2, 3).to(device)), [p.device.type == device.type for p in model.parameters()]
