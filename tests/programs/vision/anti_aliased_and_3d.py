"""Three-dimensional convolutions and pooling, and upsampling of volumes."""

import torch
import torch.nn.functional as F
from torch import nn


def program(device):
    conv, up = nn.Conv3d(2, 3, 3, padding=1).to(device), nn.ConvTranspose3d(3, 2, 2, stride=2).to(device)
    x = torch.randn(1, 2, 4, 4, 4).to(device).requires_grad_()
    y = up(F.max_pool3d(conv(x), 2))
    z = F.interpolate(y, scale_factor=2, mode="trilinear")
    z.square().mean().backward()
    return y, z, x.grad, conv.weight.grad, F.adaptive_avg_pool3d(y, 1)
