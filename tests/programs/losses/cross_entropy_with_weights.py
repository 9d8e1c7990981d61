"""cross_entropy with class weights, label smoothing and an ignored label, and its gradient."""

import torch
import torch.nn.functional as F


def program(device):
    logits = torch.randn(6, 5).to(device).requires_grad_()
    labels = torch.tensor([0, 1, -100, 3, 4, 2]).to(device)
    weight = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.1]).to(device)
    loss = F.cross_entropy(logits, labels, weight=weight, label_smoothing=0.1)
    loss.backward()
    return loss, logits.grad
