"""Which weights of a model on a 2 x 2 mesh a checkpoint has."""

import os
import tempfile

os.environ["CPU_NUM_DEVICES"] = "4"

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
import torch_xla
import torch_xla.distributed.spmd as xs
from ir_text import ir
from torch_xla.experimental.distributed_checkpoint import SPMDSavePlanner

torch_xla.runtime.use_spmd()
mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
weights = {"both": torch.ones(4, 4).to("xla"), "rows": torch.ones(4, 4).to("xla")}
# README: begin
xs.mark_sharding(weights["both"], mesh, ("data", "model"))
xs.mark_sharding(weights["rows"], mesh, ("model", None))
with tempfile.TemporaryDirectory() as folder:
    dcp.save(weights, storage_writer=dcp.FileSystemWriter(folder), planner=SPMDSavePlanner(), no_dist=True)
    print(sorted(dcp.FileSystemReader(folder).read_metadata().state_dict_metadata))
print(ir(weights["rows"]), end="")
# README: end
