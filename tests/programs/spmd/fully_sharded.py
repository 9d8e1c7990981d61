"""SpmdFullyShardedDataParallel trains as a plain model does."""

import numpy as np
import torch
from torch import nn

DEVICES = 4


def program(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    x = torch.randn(8, 8).to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs
        from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

        mesh = xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model"))
        xs.mark_sharding(x, mesh, ("fsdp", None))

        def shard_output(output, mesh):
            xs.mark_sharding(output, mesh, ("fsdp", None))

        model = SpmdFullyShardedDataParallel(model, mesh=mesh, shard_output=shard_output)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss, list(model.parameters())
