"""interpolate by size and by scale, nearest, bilinear and bicubic, with gradients."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(1, 2, 4, 5).to(device).requires_grad_()
    outs = [
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(7, 3)),
        F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        F.interpolate(x, size=(8, 9), mode="bilinear", align_corners=True),
        F.interpolate(x, size=(6, 6), mode="bicubic"),
        F.interpolate(x, scale_factor=(2, 0.5), mode="nearest-exact"),
        F.interpolate(x, size=3, mode="area"),
    ]
    sum(o.square().sum() for o in outs).backward()
    return outs, x.grad
