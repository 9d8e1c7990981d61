"""Batch normalization in the form that says at run time how it is computed."""

from typing import Optional

import torch
from torch import Tensor


def batch_norm_with_update(
    x: Tensor,
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    found = torch.ops.aten._native_batch_norm_legit_functional(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    reserve = torch.zeros(0, dtype=torch.uint8, device=x.device)
    return *found[:3], reserve, *found[3:]


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Optional[Tensor],
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    save_mean: Optional[Tensor],
    save_var: Optional[Tensor],
    update: bool,
    eps: float,
    mask: list[bool],
    reserve: Tensor,
) -> tuple[Tensor, ...]:
    return torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, mask
    )
