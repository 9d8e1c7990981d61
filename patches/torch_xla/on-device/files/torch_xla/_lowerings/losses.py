"""Losses, and the gradients of activations."""

from typing import Optional

import torch
from torch import Tensor

from .common import only

#: wide-reductions looks for a loss among the nodes of a step: its sum is one of them, and not within one.
EACH_TIME = True

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(x: Tensor, reduction: int) -> Tensor:
    return x.mean() if reduction == _MEAN else x.sum() if reduction == _SUM else x


@only(lambda x, target, *_: x.dtype == target.dtype)
def huber_loss(x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    distance = (x - target).abs()
    return _reduced(
        torch.where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta)), reduction
    )


@only(lambda grad, x, target, *_: x.dtype == target.dtype)
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    distance = x - target
    norm = 1 / distance.numel() if reduction == _MEAN and distance.numel() else 1.0
    clamped = torch.where(distance <= -delta, -delta, torch.where(distance >= delta, delta, distance))
    return clamped.to(distance.dtype) * norm * grad


def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    first, second = x.chunk(2, dim)
    gate = torch.sigmoid(second)
    return torch.cat([gate * grad, (1 - gate) * gate * grad * first], dim)


def logit_backward(grad: Tensor, x: Tensor, eps: Optional[float]) -> Tensor:
    outside = (x < (0.0 if eps is None else eps)) | (x > (1.0 if eps is None else 1 - eps))
    inside = torch.where((x == 0) | (x == 1), grad * float("inf"), grad / (x * (1 - x)))  # for -0, too
    return torch.where(outside, torch.full_like(x, float("nan") if eps is None else 0.0), inside)


def _margins(x: Tensor, target: Tensor, p: float, margin: float, weight: Optional[Tensor]):
    """x [N, C], target [N]: the summands and which of them count."""
    classes = x.shape[1]
    mine = x.gather(1, target.unsqueeze(1))
    z = margin - mine + x
    counts = (z > 0) & (torch.arange(classes, device=x.device) != target.unsqueeze(1))
    scale = 1.0 if weight is None else weight.index_select(0, target).unsqueeze(1)
    return z, counts, scale


def multi_margin_loss(x: Tensor, target: Tensor, p: float, margin: float, weight, reduction: int) -> Tensor:
    if x.numel() == 0 or x.dim() > 2 or p not in (1, 2):
        return NotImplemented
    rows, targets = torch.atleast_2d(x), target.reshape(-1)
    z, counts, scale = _margins(rows, targets, p, margin, weight)
    parts = torch.where(counts, (z if p == 1 else z * z) * scale, torch.zeros_like(z))
    found = parts.sum(1) / rows.shape[1]
    return found.reshape(target.shape) if reduction == _NONE else _reduced(found, reduction)


def multi_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, p: float, margin: float, weight, reduction: int
) -> Tensor:
    if x.numel() == 0 or x.dim() > 2 or p not in (1, 2):
        return NotImplemented
    rows, targets = torch.atleast_2d(x), target.reshape(-1)
    z, counts, scale = _margins(rows, targets, p, margin, weight)
    parts = torch.where(counts, (torch.ones_like(z) if p == 1 else 2 * z) * scale, torch.zeros_like(z))
    parts = parts / (rows.shape[1] * (rows.shape[0] if reduction == _MEAN else 1))
    parts = parts.scatter(1, targets.unsqueeze(1), -parts.sum(1, keepdim=True))
    return (parts * (grad.reshape(-1, 1) if grad.dim() else grad)).reshape(x.shape)


def _before_the_end(target: Tensor) -> Tensor:
    """Which of the targets [N, C] come before the first that is negative."""
    return torch.cumsum((target < 0).to(torch.int32), 1) == 0


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    if x.numel() == 0 or x.dim() > 2:
        return NotImplemented
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    valid = _before_the_end(targets)
    places = targets.clamp(min=0)
    is_target = torch.zeros_like(rows).scatter_add(1, places, valid.to(rows.dtype)) > 0
    mine = rows.gather(1, places)
    z = 1 - mine.unsqueeze(2) + rows.unsqueeze(1)
    counts = (z > 0) & valid.unsqueeze(2) & is_target.logical_not().unsqueeze(1)
    found = torch.where(counts, z, torch.zeros_like(z)).sum((1, 2)) / rows.shape[1]
    loss = found.reshape(target.shape[:-1]) if reduction == _NONE else _reduced(found, reduction)
    return loss, is_target.to(x.dtype).reshape(target.shape)


def multilabel_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    if x.numel() == 0 or x.dim() > 2:
        return NotImplemented
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    valid = _before_the_end(targets)
    places = targets.clamp(min=0)
    is_target = torch.atleast_2d(is_target) > 0
    z = 1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)
    counts = ((z > 0) & valid.unsqueeze(2) & is_target.logical_not().unsqueeze(1)).to(rows.dtype)
    parts = counts.sum(1).scatter_add(1, places, -counts.sum(2))
    parts = parts / (rows.shape[1] * (rows.shape[0] if reduction == _MEAN else 1))
    return (parts * (grad.reshape(-1, 1) if grad.dim() else grad)).reshape(x.shape)
