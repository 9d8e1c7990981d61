"""A gradient penalty: the gradient of a gradient's norm, through leaky ReLU and softplus."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1)).to(
        device
    )
    x = torch.randn(6, 4).to(device).requires_grad_()
    [gradient] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    penalty = (gradient.norm(dim=1) - 1).square().mean()
    penalty.backward()
    return penalty, [p.grad for p in model.parameters() if p.grad is not None]
