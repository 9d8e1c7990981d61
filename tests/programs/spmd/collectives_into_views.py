"""torch.distributed of one rank gathers and scatters into rows of a buffer"""

import os

import torch
import torch.distributed as dist


def program(device):
    x = torch.arange(4.0).to(device) + 1
    buffer = torch.zeros(4, 4).to(device)
    rows = list(buffer)
    if device.type == "xla":
        import torch_xla.distributed.xla_backend  # noqa: F401

        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("xla", init_method="xla://")
        dist.all_gather_into_tensor(buffer[0], x)
        dist.reduce_scatter_tensor(buffer[1], x)
        dist.all_gather([buffer[2]], x)
        buffer[3] = x
        dist.all_reduce(buffer[3])
    else:
        buffer[:] = x
    return buffer, rows
