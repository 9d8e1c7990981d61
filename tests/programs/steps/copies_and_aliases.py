"""copy.copy shares memory, clone does not; copy_ between dtypes and shapes (pytorch/xla#876)."""

import copy

import torch


def program(device):
    x = torch.zeros(3).to(device)
    shared, own = copy.copy(x), x.clone()
    x.add_(1)
    whole = torch.zeros(2, 3, dtype=torch.int32).to(device)
    whole.copy_(torch.tensor([1.7, -1.7, 2.0]).to(device))
    cpu = torch.zeros(3)
    cpu.copy_(x)
    return shared, own, whole, cpu
