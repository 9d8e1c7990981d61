"""A write to a tensor is seen by its views, and the other way round (pytorch/xla#2418)."""

import torch


def program(device):
    x = torch.zeros(4, 3, device=device)
    row, column, flat, turned = x[1], x[:, 2], x.view(-1), x.t()
    row.add_(1)
    column.mul_(5).add_(2)
    flat[::4] = 9
    turned[0].sub_(1)
    x += 1
    return x, row, column, flat, turned
