"""Gradients at ties of maximum, max, amax, relu, abs, clamp and sort; NaN in max."""

import torch


def program(device):
    results = []
    for call in (
        lambda x: torch.maximum(x, torch.zeros_like(x)).sum(),
        lambda x: x.amax(1).sum(),
        lambda x: x.max(1).values.sum(),
        lambda x: x.max(),
        lambda x: x.relu().sum() + x.abs().sum(),
        lambda x: x.clamp(0, 1).sum(),
        lambda x: x.sort(1, stable=True).values[:, 0].sum(),
        lambda x: x.median(1).values.sum(),
    ):
        x = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, -1.0]]).to(device).requires_grad_()
        call(x).backward()
        results.append(x.grad)
    nan = torch.tensor([1.0, float("nan"), 2.0]).to(device)
    return results, nan.max(), nan.argmax(), nan.amin(), nan.max(0).indices
