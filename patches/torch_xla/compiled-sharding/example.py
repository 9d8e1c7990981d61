"""A compiled function that marks how a tensor is sharded."""

import os

os.environ["CPU_NUM_DEVICES"] = "4"
import torch
import torch_xla
import torch_xla.runtime as xr

xr.use_spmd()
x = torch.ones(4, device=torch_xla.device())


# README: begin
@torch.compile(backend="openxla")
def doubled(x):
    return 2 * torch.ops.xla.dynamo_mark_sharding(x + 1, [0, 1, 2, 3], [4], "('x',)", "('x',)")


try:
    print(torch_xla._XLAC._get_xla_sharding_spec(doubled(x)))
except RuntimeError as error:
    print(error)
# README: end
