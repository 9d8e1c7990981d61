"""Losses of distributions."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(5).to(device).requires_grad_()
    y = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]).to(device)
    var = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.0]).to(device)
    loss = F.gaussian_nll_loss(x, y, var, full=True) + F.poisson_nll_loss(x, y, full=True)
    loss = loss + F.soft_margin_loss(x, y.sign() * 2 - 1) + F.hinge_embedding_loss(x, y.sign() * 2 - 1)
    loss.backward()
    return loss, x.grad
