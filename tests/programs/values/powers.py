"""Powers: integers, negative bases, zero, and gradients at zero."""

import torch


def program(device):
    x = torch.tensor([-2.0, 0.0, 2.0]).to(device).requires_grad_()
    (x**2 + x**3 + x.abs() ** 1.5).sum().backward()
    i = torch.tensor([-2, -1, 1, 3]).to(device)
    return (
        x.grad,
        i**2,
        i**0,
        2 ** i.abs(),
        x.detach() ** 0.5,
        x.detach() ** -1,
        i.float().pow(i.float()),
        i.pow(i.abs()),
    )
