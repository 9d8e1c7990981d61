"""Writes through .data and detach() reach the tensor; a new .data does not reach old views (pytorch/xla#3392)."""

import torch


def program(device):
    x = torch.zeros(4, device=device)
    view = x.view(2, 2)
    x.data.add_(1)
    x.detach()[0] = 5
    seen = view.clone()
    x.data = torch.full((4,), 9.0, device=device)
    return seen, view, x
