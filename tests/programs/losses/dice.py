"""Dice loss of a segmentation's classes."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(2, 3, 6, 6).to(device).requires_grad_()
    y = torch.randint(0, 3, (2, 6, 6)).to(device)
    p, t = x.softmax(1), F.one_hot(y, 3).permute(0, 3, 1, 2).float()
    overlap, total = (p * t).sum((0, 2, 3)), p.sum((0, 2, 3)) + t.sum((0, 2, 3))
    loss = 1 - (2 * overlap / (total + 1e-6)).mean()
    loss.backward()
    return loss, x.grad
