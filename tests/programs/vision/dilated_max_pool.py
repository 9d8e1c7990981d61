"""The gradient of a max pooling with dilation."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(1, 2, 8, 8).to(device).requires_grad_()
    out = F.max_pool2d(x, 2, stride=1, dilation=2)
    out.square().sum().backward()
    return out, x.grad
