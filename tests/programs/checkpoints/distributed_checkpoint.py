"""torch.distributed.checkpoint without a process group: saved and loaded in place."""

import torch
import torch.distributed.checkpoint as dcp
from torch import nn


def program(device):
    model = nn.Linear(3, 2).to(device)
    dcp.save({"model": model.state_dict()}, checkpoint_id="saved")
    other = nn.Linear(3, 2).to(device)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id="saved")
    other.load_state_dict(state["model"])
    return model(torch.ones(1, 3).to(device)) - other(torch.ones(1, 3).to(device))
