"""AdamW of sharded parameters: some steps, as without shards."""

import numpy as np
import torch
from torch import nn

DEVICES = 4


def program(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (1, 4), ("data", "model"))
        xs.mark_sharding(model[0].weight, mesh, ("model", None))
        xs.mark_sharding(model[2].weight, mesh, (None, "model"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(4, 8).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())
