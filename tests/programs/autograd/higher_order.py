"""Hessians, Jacobians, and products with them."""

import torch
from torch.func import hessian, jacfwd, jacrev, jvp, vjp


def program(device):
    x, v = torch.randn(3).to(device), torch.randn(3).to(device)

    def call(x):
        return (x**3).sum() + x.prod()

    def many(x):
        return torch.stack([x.sum(), x.prod(), x.exp().mean()])

    return hessian(call)(x), jacrev(many)(x), jacfwd(many)(x), jvp(many, (x,), (v,)), vjp(many, x)[1](v)
