"""Decompositions and solutions: Cholesky, QR by its product, singular values, inverse, determinant."""

import torch

TOLERANCE = 1e-3


def program(device):
    a = torch.randn(4, 4)
    s = (a @ a.t() + torch.eye(4) * 4).to(device).requires_grad_()
    low = torch.linalg.cholesky(s)
    q, r = torch.linalg.qr(s)
    loss = torch.linalg.slogdet(s).logabsdet + torch.linalg.solve(s, torch.ones(4, 1).to(device)).sum()
    loss.backward()
    return low, q @ r, torch.linalg.svdvals(s), s.inverse(), torch.linalg.det(s), s.grad, torch.linalg.eigvalsh(s)
