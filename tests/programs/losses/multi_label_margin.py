"""Multi-class and multi-label margin losses."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(3, 4).to(device).requires_grad_()
    y = torch.tensor([0, 3, 1]).to(device)
    many = torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2], [0, 1, 2, 3]]).to(device)
    loss = F.multi_margin_loss(x, y) + F.multilabel_margin_loss(x, many)
    loss = loss + F.multilabel_soft_margin_loss(x, (many > 0).float())
    loss.backward()
    return loss, x.grad
