"""Complex numbers: products, absolute values, angles, conjugates and real parts, with gradients."""

import torch


def program(device):
    a, b = (torch.randn(3, 2).to(device).requires_grad_() for _ in range(2))
    z, w = torch.view_as_complex(a), torch.view_as_complex(b)
    y = z * w.conj() + 2j
    loss = y.abs().square().sum() + y.angle().sum() + (z * w).real.sum()
    loss.backward()
    return y, loss, a.grad, b.grad, torch.complex(a[:, 0].detach(), b[:, 0].detach()).exp()
