"""A 1-D tensor is sharded as it is sent (pytorch/xla#8606)."""

import numpy as np
import torch

DEVICES = 4


def program(device):
    x = torch.arange(8.0)
    if device.type == "xla":
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (4,), ("data",))
        [x] = xm.send_cpu_data_to_device([x], device, xs.ShardingSpec(mesh, ("data",)))
    return x * 2, x.sum()
