"""An in-place operation whose result has another shape, or another kind of dtype, raises."""

import torch


def program(device):
    said = []
    for call in (
        lambda: torch.zeros(3).to(device).add_(torch.ones(2, 3).to(device)),
        lambda: torch.zeros(3, dtype=torch.int32).to(device).add_(0.5),
        lambda: torch.zeros(3, dtype=torch.int32).to(device).div_(2),
    ):
        try:
            call().cpu()
            said.append("nothing")
        except RuntimeError:
            said.append("raised")
    return said
