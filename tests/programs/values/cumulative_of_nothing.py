"""cummax of a dimension without elements (pytorch/xla#8610)."""

import torch


def program(device):
    return torch.cummax(torch.rand(0).to(device), -1), torch.zeros(2, 0).to(device).cumsum(1)
