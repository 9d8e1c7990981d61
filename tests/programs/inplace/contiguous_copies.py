"""contiguous and reshape of a view that is not contiguous are copies (pytorch/xla#2418)."""

import torch


def program(device):
    x = torch.zeros(2, 3, device=device)
    copy, shared = x.t().contiguous(), x.contiguous()
    copy.add_(1)
    shared.add_(5)
    flat = x.t().reshape(-1)
    flat.fill_(7)
    return x, copy, flat
