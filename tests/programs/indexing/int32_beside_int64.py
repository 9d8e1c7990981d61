"""Indices of int32 beside ones of int64 and masks, as positions and slots of a cache come, with gradients"""

import torch


def program(device):
    cache = torch.zeros(3, 4, 2).to(device)
    slots = torch.tensor([2, 0], dtype=torch.int32).to(device)
    positions = torch.tensor([1, 3]).to(device)
    cache[slots, positions] = torch.arange(4.0).view(2, 2).to(device)
    cache[slots[:, None], positions[None, :]] += 1
    cache[torch.tensor([True, False, True]).to(device), slots] = 7.0
    weight = torch.arange(12.0).view(3, 4).to(device).requires_grad_()
    read = weight[slots, positions]
    read.square().sum().backward()
    one = torch.ones(2).to(device)
    return cache, read, weight.grad, weight.detach().index_put((slots, positions), one, accumulate=True)
