"""out= arguments, resize by out=, set_ of data of another shape (pytorch/xla#3330)."""

import torch


def program(device):
    x, y = torch.ones(2, 3).to(device), torch.arange(3.0).to(device)
    out = torch.empty(0, device=device)
    torch.add(x, y, out=out)
    total = torch.zeros(3, device=device)
    torch.sum(x, 0, out=total)
    w = torch.zeros(2, device=device)
    w.data = torch.ones(3, 4, device=device)
    return out, total, w, w.shape
