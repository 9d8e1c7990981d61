"""Sums, products, means, any, all and max of tensors without elements."""

import torch


def program(device):
    x = torch.zeros(0, 3).to(device)
    results = [x.sum(), x.prod(), x.mean(), x.sum(0), x.mean(0), x.any(), x.all(), x.sum(1), x.var(), x.cumsum(0)]
    try:
        x.max(0)
    except (IndexError, RuntimeError):
        results.append("refused")
    return results, x.t() @ x, x @ x.t(), torch.cat([x, torch.ones(1, 3).to(device)])
