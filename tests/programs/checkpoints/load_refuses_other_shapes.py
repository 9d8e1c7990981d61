"""load_state_dict of another shape raises; with strict=False what is missing is named."""

import torch
from torch import nn


def program(device):
    model = nn.Linear(3, 2).to(device)
    missing = model.load_state_dict({"weight": torch.ones(2, 3), "more": torch.ones(1)}, strict=False)
    said = (missing.missing_keys, missing.unexpected_keys)
    try:
        model.load_state_dict({"weight": torch.ones(3, 3), "bias": torch.ones(2)})
    except RuntimeError as error:
        return said, "size mismatch" in str(error), model.weight
    return said
