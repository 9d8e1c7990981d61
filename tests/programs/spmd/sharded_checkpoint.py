"""Weights sharded over one axis of a 2-D mesh are saved and loaded (pytorch/xla#7215)."""

import numpy as np
import torch.distributed.checkpoint as dcp
from torch import nn

DEVICES = 4


def program(device):
    model, other = nn.Linear(8, 4), nn.Linear(8, 4)
    wanted = [p.detach().clone() for p in model.parameters()]
    if device.type == "cpu":
        return wanted
    import torch_xla.distributed.spmd as xs
    from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner

    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    for each in (model.to(device), other.to(device)):
        xs.mark_sharding(each.weight, mesh, ("model", None))
    dcp.save({"model": model.state_dict()}, checkpoint_id="saved", planner=SPMDSavePlanner(), no_dist=True)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id="saved", planner=SPMDLoadPlanner(), no_dist=True)
    return state["model"]["weight"].cpu(), state["model"]["bias"].cpu()
