"""cumsum, cumprod, cummax with ties, logcumsumexp and diff (pytorch/xla#8675)."""

import torch


def program(device):
    x = torch.tensor([1.0, 3.0, 3.0, 2.0]).to(device)
    i = torch.tensor([1, 1, 1]).to(device)
    return x.cumsum(0), x.cumprod(0), x.cummax(0), i.cummax(0), i.cummin(0), x.logcumsumexp(0), x.diff(), i.cumsum(0)
