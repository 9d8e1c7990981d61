"""Shapes of views, and as_strided of a slice (pytorch/xla#7859)."""

import torch


def program(device):
    x = torch.arange(24).view(2, 3, 4).to(device)
    views = [x, x.transpose(0, 2), x[:, 1:], x[1], x.expand(2, 3, 4), x[..., ::2]]
    return [v.shape for v in views], x[:, 1:].as_strided((2, 2), (4, 1))
