"""A loop of steps under no_grad with a sync after each, and a cache that is a list of pairs."""

import torch
from torch import nn


def program(device):
    layer, cache, x = nn.Linear(4, 4).to(device), [], torch.ones(1, 4).to(device)
    with torch.no_grad():
        for _ in range(4):
            x = torch.tanh(layer(x))
            cache.append((x, x * 2))
            if device.type == "xla":
                import torch_xla

                torch_xla.sync()
        keys = torch.cat([k for k, _ in cache])
    return x, keys, x.requires_grad
