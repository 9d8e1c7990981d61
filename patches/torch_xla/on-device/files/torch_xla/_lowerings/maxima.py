"""Maxima and minima of floating-point numbers, where torch_xla's begin at a finite number: that of -inf alone is -inf.

One IR node each, of the name of torch_xla's. A function takes the kernel that its operator had as well. Tensors without
dimensions or elements are torch_xla's: csrc/castoff/maxima.cpp calls a function for others, once for each form.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import Operand
from torch_xla.core.xla_builder import Op, create_computation

from .loops import shape_of


@functools.lru_cache(maxsize=1024)
def _reduction(dtype: torch.dtype, sizes: tuple[int, ...], dims: tuple[int, ...], keepdim: bool, largest: bool) -> Any:
    def reduced(x: Op) -> Op:
        start = Op.scalar(x.builder(), -math.inf if largest else math.inf, x.shape().dtype)
        found = x.reduce(start, (lambda a, b: a.max(b)) if largest else (lambda a, b: a.min(b)), dims)
        return found.reshape(tuple(1 if d in dims else n for d, n in enumerate(sizes))) if keepdim else found

    return create_computation("amax" if largest else "amin", reduced, [shape_of(Operand(dtype, sizes))])


def _reduced(name: str, x: Tensor, dims: Sequence[int], keepdim: bool) -> Optional[Tensor]:
    """The result as one node of this name; None for dimensions that torch_xla's kernel is to refuse."""
    rank = x.dim()
    reduced = tuple({d % rank: None for d in dims}) or tuple(range(rank))
    if not all(-rank <= d < rank for d in dims) or (dims and len(reduced) != len(dims)):
        return None
    made = _reduction(x.dtype, tuple(x.shape), reduced, keepdim, name.endswith("max"))
    return torch_xla._XLAC._xla_user_computation(name, [x], made)[0]


def _along_dimensions(name: str) -> Callable:
    def reduced(kept: Callable, x: Tensor, dims: Sequence[int] = (), keepdim: bool = False) -> Tensor:
        found = _reduced(name, x, dims, keepdim)
        return kept(x, dims, keepdim) if found is None else found

    return reduced


def _of_all(name: str) -> Callable:
    return lambda kept, x: _reduced(name, x, (), False)


def _with_places(name: str) -> Callable:
    def reduced(kept: Callable, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        _, places = kept(x, dim, keepdim)  # which refuses a wrong dimension
        return _reduced(name, x, (dim,), keepdim), places

    return reduced


amax, amin = _along_dimensions("aten::amax"), _along_dimensions("aten::amin")
max, min = _of_all("aten::max"), _of_all("aten::min")
max_dim, min_dim = _with_places("aten::max"), _with_places("aten::min")
