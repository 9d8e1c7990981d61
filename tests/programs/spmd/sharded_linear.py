"""A linear layer with its weight sharded over four devices, forward and backward."""

import numpy as np
import torch
from torch import nn

DEVICES = 4


def program(device):
    model = nn.Linear(8, 4).to(device)
    x = torch.randn(4, 8).to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
        xs.mark_sharding(model.weight, mesh, ("model", None))
        xs.mark_sharding(x, mesh, ("data", None))
    out = model(x)
    out.square().sum().backward()
    return out, model.weight.grad, model.bias.grad
