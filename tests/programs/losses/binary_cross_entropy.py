"""binary_cross_entropy of saturated probabilities, and with logits and positive weights."""

import torch
import torch.nn.functional as F


def program(device):
    p = torch.tensor([0.0, 1.0, 0.3, 0.9]).to(device).requires_grad_()
    y = torch.tensor([1.0, 0.0, 1.0, 1.0]).to(device)
    loss = F.binary_cross_entropy(p, y)
    loss.backward()
    x = torch.tensor([-90.0, 90.0, 0.2, -0.4]).to(device).requires_grad_()
    other = F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor([3.0]).to(device))
    other.backward()
    return loss, p.grad, other, x.grad
