"""A spatial transformer: affine_grid and grid_sample, with gradients of both."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(1, 2, 5, 5).to(device).requires_grad_()
    theta = torch.tensor([[[0.8, 0.1, 0.2], [-0.1, 0.9, -0.1]]]).to(device).requires_grad_()
    grid = F.affine_grid(theta, (1, 2, 4, 4), align_corners=False)
    y = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    y.square().sum().backward()
    return y, x.grad, theta.grad
