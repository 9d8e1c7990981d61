"""In-place changes of a leaf that wants a gradient raise; under no_grad they do not."""

import torch


def program(device):
    x = torch.ones(3).to(device).requires_grad_()
    with torch.no_grad():
        x.mul_(2)
    try:
        x.add_(1)
    except RuntimeError as error:
        return x, "leaf Variable" in str(error)
    return x, False
