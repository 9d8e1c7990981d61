"""scan_layers over equal layers: values and gradients of a loop."""

import torch
from torch import nn


def program(device):
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()) for _ in range(3)).to(device)
    x = torch.randn(2, 4).to(device).requires_grad_()
    if device.type == "xla":
        from torch_xla.experimental.scan_layers import scan_layers

        out = scan_layers(layers, x)
    else:
        out = x
        for layer in layers:
            out = layer(out)
    out.square().sum().backward()
    return out, x.grad, [p.grad for p in layers.parameters()]
