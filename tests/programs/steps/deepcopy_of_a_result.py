"""deepcopy of a tensor with a gradient, and of one that is not a leaf."""

import copy

import torch


def program(device):
    x = torch.ones(3).to(device).requires_grad_()
    (x * 2).sum().backward()
    y = copy.deepcopy(x)
    try:
        copy.deepcopy(x * 2)
    except RuntimeError:
        return y, y.grad, y.requires_grad, "refused"
    return y, y.grad, y.requires_grad, "accepted"
