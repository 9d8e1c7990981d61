"""Gradients of norms, sqrt and normalize at zero."""

import torch
import torch.nn.functional as F


def program(device):
    results = []
    for call in (
        lambda x: x.norm(),
        lambda x: x.norm(dim=1).sum(),
        lambda x: F.normalize(x, dim=1).sum(),
        lambda x: torch.linalg.vector_norm(x, ord=1),
        lambda x: torch.linalg.vector_norm(x, ord=float("inf")),
        lambda x: (x.square().sum() + 1e-12).sqrt(),
    ):
        x = torch.zeros(2, 3).to(device).requires_grad_()
        y = call(x)
        y.backward()
        results += [y, x.grad]
    return results
