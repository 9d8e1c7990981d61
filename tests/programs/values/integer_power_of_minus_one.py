"""An integer tensor to the power of -1 raises, as on the CPU."""

import torch


def program(device):
    return torch.tensor([1, 2, -1]).to(device) ** -1
