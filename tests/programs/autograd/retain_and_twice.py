"""backward twice with retain_graph, and an error without."""

import torch


def program(device):
    x = torch.ones(3).to(device).requires_grad_()
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    first = x.grad.clone()
    try:
        y.backward()
    except RuntimeError:
        return first, "refused"
    return first, "accepted"
