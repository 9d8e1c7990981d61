"""The gradient of a bias is a sum over all pixels, of bfloat16: in float32, rounded once."""

import torch
from torch import nn

TOLERANCE = 1e-2


def program(device):
    conv = nn.Conv2d(3, 2, 1).bfloat16().to(device)
    x = torch.randn(4, 3, 32, 32).bfloat16().to(device)
    conv(x).float().square().mean().backward()
    return conv.bias.grad
