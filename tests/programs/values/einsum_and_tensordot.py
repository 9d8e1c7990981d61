"""einsum of several operands, with a diagonal, with an ellipsis, tensordot, kron and chain products."""

import torch


def program(device):
    a, b, c = torch.randn(3, 4).to(device), torch.randn(4, 5).to(device), torch.randn(2, 3, 3).to(device)
    return (
        torch.einsum("ij,jk->ik", a, b),
        torch.einsum("bii->bi", c),
        torch.einsum("...ij,jk->...ik", c, a),
        torch.einsum("ij,jk,lk->il", a, b, b),
        torch.tensordot(a, b, 1),
        torch.kron(a, b),
        torch.linalg.multi_dot([a, b, b.t()]),
        torch.einsum("bij,bjk->", c, c),
        torch.baddbmm(c, c, c, beta=0.5, alpha=2),
        torch.outer(a[0], b[0]),
    )
