"""scan_layers with dropout in evaluation mode, under no_grad."""

import torch
from torch import nn


def program(device):
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(2)).to(device).eval()
    x = torch.randn(8, 4).to(device)
    with torch.no_grad():
        if device.type == "xla":
            from torch_xla.experimental.scan_layers import scan_layers

            return scan_layers(layers, x)
        for layer in layers:
            x = layer(x)
        return x
