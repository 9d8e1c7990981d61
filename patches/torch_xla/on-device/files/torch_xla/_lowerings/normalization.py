"""Batch normalization in the form that says at run time how it is computed, and of weights by their norms."""

from typing import Optional

import torch
from torch import Tensor

from .common import keeps_dtypes, only


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


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _sum_of_others(x: Tensor, dim: int) -> Tensor:
    """Of all dimensions but ``dim``, the first or the last one."""
    return x.sum([d for d in range(x.dim()) if d != dim % x.dim()], keepdim=True) if x.dim() > 1 else x


def _is_of_floats(*arguments: object) -> bool:
    return all(t.is_floating_point() for t in arguments if isinstance(t, Tensor))


@only(_is_of_floats)
@keeps_dtypes
def weight_norm(v: Tensor, g: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """v g / |v|, and |v|, which is float32 for a bfloat16 v, as on the CPU."""
    wide = _wide(v)
    norms = torch.sqrt(_sum_of_others(wide * wide, dim))
    return (wide * (_wide(g) / norms)).to(v.dtype), norms


@only(_is_of_floats)
@keeps_dtypes
def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    grad, wide = _wide(grad), _wide(v)
    along = _sum_of_others(grad * wide, dim)
    of_v = _wide(g) / norms * (grad - wide * (along / (norms * norms)))
    return of_v.to(v.dtype), (along / norms).to(g.dtype)
