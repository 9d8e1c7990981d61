"""A sharded contraction of bfloat16: the sum over devices loses nothing."""

import numpy as np
import torch

DEVICES = 4
TOLERANCE = 1e-2


def program(device):
    x, w = torch.randn(8, 64).bfloat16().to(device), torch.randn(64, 8).bfloat16().to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (4,), ("model",))
        xs.mark_sharding(x, mesh, (None, "model"))
        xs.mark_sharding(w, mesh, ("model", None))
    return x @ w
