"""A bfloat16 loss over 4,096 classes: its gradient is as near to float64's as the CPU's (pytorch/xla#8545)."""

import torch
import torch.nn.functional as F


def program(device):
    logits, labels = (torch.randn(8, 4096) * 3).bfloat16(), torch.randint(0, 4096, (8,))
    exact = logits.double().requires_grad_()
    F.cross_entropy(exact, labels).backward()
    found = logits.to(device).requires_grad_()
    loss = F.cross_entropy(found, labels.to(device))
    loss.backward()
    error = (found.grad.cpu().double() - exact.grad).norm() / exact.grad.norm()
    return loss, bool(error < 1e-2)
