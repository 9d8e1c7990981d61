"""Routing to the best experts: top-k, softmax over them, a loop over experts with index_add_."""

import torch
from torch import nn


def program(device):
    tokens = torch.randn(6, 4).to(device).requires_grad_()
    router = torch.randn(4, 3).to(device)
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
    weights, chosen = (tokens @ router).softmax(-1).topk(2, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(tokens)
    one_hot = nn.functional.one_hot(chosen, 3).permute(2, 1, 0)
    for number, expert in enumerate(experts):
        slot, row = torch.where(one_hot[number])
        out.index_add_(0, row, expert(tokens[row]) * weights[row, slot, None])
    out.square().sum().backward()
    return out, chosen, tokens.grad, [p.grad for p in experts.parameters()]
