"""gather, scatter of numbers and tensors, scatter_add and scatter_reduce, with gradients."""

import torch


def program(device):
    x = torch.randn(3, 4).to(device).requires_grad_()
    index = torch.tensor([[0, 1], [3, 3], [2, 0]]).to(device)
    picked = x.gather(1, index)
    spread = torch.zeros(3, 4, device=device).scatter(1, index, picked)
    added = torch.zeros(3, 4, device=device).scatter_add(1, index, picked)
    top = torch.zeros(3, 4, device=device).scatter_reduce(1, index, picked, "amax", include_self=False)
    mean = torch.ones(3, 4, device=device).scatter_reduce(1, index, picked.detach(), "mean")
    (added.square().sum() + top.sum()).backward()
    return picked, spread[:2:2], added, top, mean, x.grad, torch.zeros(3, 4).to(device).scatter_(1, index, 2.0)
