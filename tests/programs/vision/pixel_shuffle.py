"""pixel_shuffle and back, with gradients (pytorch/xla#922)."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(1, 9, 4, 4).to(device).requires_grad_()
    y = F.pixel_shuffle(x, 3)
    (y * torch.arange(12.0).to(device)).sum().backward()
    return y, x.grad, F.pixel_unshuffle(y, 2), F.channel_shuffle(x, 3)
