"""Under autocast a weight is used twice, and its gradient is the sum of both."""

import torch

TOLERANCE = 3e-2


def program(device):
    w, x = torch.randn(4, 4).to(device).requires_grad_(), torch.randn(3, 4).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = ((x @ w).tanh() @ w).float().sum()
    loss.backward()
    return w.grad, str(w.grad.dtype)
