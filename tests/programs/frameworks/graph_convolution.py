"""A graph network: messages by index_select, sums by index_add, softmax over neighbours by scatter."""

import torch


def program(device):
    x = torch.randn(4, 3).to(device).requires_grad_()
    source, target = torch.tensor([0, 1, 2, 3, 0]).to(device), torch.tensor([1, 2, 2, 0, 3]).to(device)
    score = (x[source] * x[target]).sum(-1)
    top = torch.full((4,), float("-inf"), device=device).scatter_reduce(0, target, score.detach(), "amax")
    e = (score - top[target]).exp()
    total = torch.zeros(4, device=device).index_add(0, target, e)
    message = x.index_select(0, source) * (e / total[target])[:, None]
    out = torch.zeros(4, 3, device=device).index_add(0, target, message)
    degree = torch.zeros(4, device=device).scatter_add_(0, target, torch.ones(5, device=device))
    out.square().sum().backward()
    return out, degree, x.grad
