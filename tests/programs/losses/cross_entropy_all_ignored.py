"""A batch whose labels are all ignored: the mean over nothing is NaN, and the gradient zero."""

import torch
import torch.nn.functional as F


def program(device):
    logits = torch.randn(4, 7).to(device).requires_grad_()
    labels = torch.full((4,), -100).to(device)
    mean = F.cross_entropy(logits, labels)
    total = F.cross_entropy(logits, labels, reduction="sum")
    total.backward()
    return mean, total, logits.grad
