"""Gradients of distances between rows."""

import math

import torch
from torch import Tensor


def _slopes(difference: Tensor, p: float, distance: Tensor) -> Tensor:
    """The derivative of a p-norm [..., 1] by its differences [..., M]; torch takes 0 where it has none."""
    if p == 1:
        return difference.sgn()
    size = difference.abs()
    if p == math.inf:
        return difference.sgn() * (size == distance)
    nothing = distance == 0 if p >= 1 else (distance == 0) | (size == 0)
    safe = torch.where(distance == 0, torch.ones_like(distance), distance)
    if p == 2:
        found = difference / safe
    elif p < 2:
        found = difference.sgn() * torch.where(nothing, torch.ones_like(size), size) ** (p - 1) / safe ** (p - 1)
        nothing = nothing | (size == 0)
    else:
        found = difference * size ** (p - 2) / safe ** (p - 1)
    return torch.where(nothing, torch.zeros_like(found), found)


def cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    shape = (*batch, *x.shape[-2:])
    if p == 0 or not math.prod(shape) or not y.numel():
        return x.new_zeros(shape)
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    slopes = _slopes(difference, p, distance.unsqueeze(-1))
    return (grad.unsqueeze(-1) * slopes).sum(-2).expand(shape)


def pdist_backward(grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    if p == 0 or not distance.numel() or not x.numel():
        return torch.zeros_like(x)
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1).to(x.device)
    difference = x.index_select(0, first) - x.index_select(0, second)
    parts = grad.unsqueeze(-1) * _slopes(difference, p, distance.unsqueeze(-1))
    return torch.zeros_like(x).index_add(0, first, parts).index_add(0, second, -parts)
