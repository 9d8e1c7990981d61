"""Pooling with padding, ceil mode, indices and unpooling, and adaptive pooling."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(2, 3, 7, 7).to(device).requires_grad_()
    top, where = F.max_pool2d(x, 2, return_indices=True)
    outs = [
        F.max_pool2d(x, 3, stride=2, padding=1, ceil_mode=True),
        F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
        F.adaptive_avg_pool2d(x, 3),
        F.adaptive_max_pool2d(x, (2, 3)),
        F.lp_pool2d(x.abs() + 1, 2, 2),
        top,
        F.max_unpool2d(top, where, 2, output_size=(7, 7)),
        F.avg_pool1d(x.flatten(2), 4),
    ]
    sum(o.square().sum() for o in outs).backward()
    return outs, where, x.grad
