"""Convolutions with stride, dilation, groups, and transposed, with their gradients."""

import torch
from torch import nn


def program(device):
    layers = [
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 4, 3, dilation=2, groups=4),
        nn.Conv2d(4, 6, (1, 3), padding="same"),
        nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
        nn.Conv2d(4, 8, 3, padding_mode="circular", padding=1),
    ]
    results = []
    for layer in layers:
        layer.to(device)
        x = torch.randn(2, 4, 8, 8).to(device).requires_grad_()
        y = layer(x)
        y.square().mean().backward()
        results += [y, x.grad, layer.weight.grad, layer.bias.grad]
    return results
