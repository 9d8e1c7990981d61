"""scan_layers over layers with dropout, in training and under no_grad."""

import torch
from torch import nn


def program(device):
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(2)).to(device)
    x = torch.randn(8, 4).to(device)
    if device.type == "xla":
        from torch_xla.experimental.scan_layers import scan_layers

        def call(x):
            return scan_layers(layers, x)
    else:

        def call(x):
            for layer in layers:
                x = layer(x)
            return x

    with torch.no_grad():
        quiet = call(x)
    out = call(x)
    out.sum().backward()
    return quiet.shape, bool((out == 0).any()), bool((out != 0).any()), layers[0][0].weight.grad is not None
