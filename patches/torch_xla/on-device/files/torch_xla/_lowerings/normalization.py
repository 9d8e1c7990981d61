"""Batch normalization in the form that says at run time how it is computed, and of weights by their norms."""

from typing import Any

import torch
from torch import Tensor

from .common import keeps_dtypes, only, wide_of


def batch_norm_with_update(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *parameters, momentum, eps = rest
    found = torch.ops.aten._native_batch_norm_legit_functional(x, *parameters, True, momentum, eps)
    reserve = torch.zeros(0, dtype=torch.uint8, device=x.device)
    return *found[:3], reserve, *found[3:]


def batch_norm_backward(*arguments: Any) -> tuple[Tensor, ...]:
    *given, _reserve = arguments
    return torch.ops.aten.native_batch_norm_backward(*given)


def _sum_of_others(x: Tensor, dim: int) -> Tensor:
    """Of all dimensions but ``dim``, the first or the last one."""
    return x.sum([d for d in range(x.dim()) if d != dim % x.dim()], keepdim=True) if x.dim() > 1 else x


def _is_of_floats(*arguments: object) -> bool:
    return all(t.is_floating_point() for t in arguments if isinstance(t, Tensor))


@only(_is_of_floats)
@keeps_dtypes
def weight_norm(v: Tensor, g: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """v g / |v|, and |v|, which is float32 for a bfloat16 v, as on the CPU."""
    wide = wide_of(v)
    norms = torch.sqrt(_sum_of_others(wide * wide, dim))
    return (wide * (wide_of(g) / norms)).to(v.dtype), norms


@only(_is_of_floats)
@keeps_dtypes
def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    grad, wide = wide_of(grad), wide_of(v)
    along = _sum_of_others(grad * wide, dim)
    of_v = wide_of(g) / norms * (grad - wide * (along / (norms * norms)))
    return of_v.to(v.dtype), (along / norms).to(g.dtype)
