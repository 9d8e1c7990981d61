"""cross_entropy of an image's pixels, with an ignored class: segmentation."""

import torch
import torch.nn.functional as F


def program(device):
    logits = torch.randn(2, 4, 5, 5).to(device).requires_grad_()
    labels = torch.randint(0, 4, (2, 5, 5))
    labels[0, 0] = 255
    loss = F.cross_entropy(logits, labels.to(device), ignore_index=255)
    loss.backward()
    return loss, logits.grad
