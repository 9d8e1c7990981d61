"""The gradient of dropout drops what the forward dropped."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.ones(300).to(device).requires_grad_()
    y = F.dropout(x, 0.4)
    y.sum().backward()
    return bool((y.detach() == x.grad).all()), 100 < int((y > 0).sum()) < 260
