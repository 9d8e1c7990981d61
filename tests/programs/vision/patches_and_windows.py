"""Patches of images by unfold and by reshape, Swin's shifted windows, and fold."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(1, 2, 8, 8).to(device).requires_grad_()
    patches = F.unfold(x, 2, stride=2)
    back = F.fold(patches, (8, 8), 2, stride=2)
    shifted = torch.roll(x.permute(0, 2, 3, 1), (-2, -2), (1, 2))
    windows = shifted.view(1, 2, 4, 2, 4, 2).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 2)
    slides = x.unfold(2, 3, 1).unfold(3, 3, 2)
    (windows.square().sum() + patches.sum() + slides.square().sum()).backward()
    return patches, back, windows, slides, x.grad
