"""Images resampled along both dimensions by products with matrices of weights.

A TPU makes these in a fraction of the time of gathers. But 0 times NaN or infinity is NaN: whether there was one in an
image is seen from one column of the first product, where it is in each sum. Only then a branch runs that tells weights
of 0 from places outside of a window.
"""

import functools
import math
from typing import NamedTuple

import torch
import torch_xla
from torch import Tensor
from torch_xla._hlo_module import Operand, computation, message
from torch_xla.core.xla_builder import Op, create_computation, mkop

from .loops import integer, shape_of

_MARGIN = 2.0**4
"""The first product is so much smaller, and the second larger: sums of large finite numbers stay finite."""


class Windows(NamedTuple):
    """Of the windows of L elements over M places, tensors [L, M] of the CPU: the sums of the weights at each place, and
    whether one is at least 0, and at most 0. Outside of a window neither is."""

    weights: Tensor
    up: Tensor
    down: Tensor

    def t(self) -> "Windows":
        return Windows(*(matrix.t() for matrix in self))


def _product(x: Op, weights: Op, dtype: torch.dtype, precision: str = "highest") -> Op:
    """The sums over M of x [B, M, N] times weights [L, M]: [B, N, L]."""
    (batch, _, kept), (made, _) = x.shape().sizes, weights.shape().sizes
    left, right = (Operand(dtype, tuple(o.shape().sizes)) for o in (x, weights))
    dimensions = message((30, message((1, [1]), (2, [1]))))
    dot = computation("dot", left, right, Operand(dtype, (batch, kept, made)), dimensions, precision)
    return Op.call(dot, [x, weights])


def _is_finite(x: Op) -> Op:
    """Not by the largest element: XLA's CPU forgets NaN there."""
    flags = (mkop("Abs", (x.op,)) < x.scalar_like(math.inf)).cast("s32")
    return flags.reduce_all(integer(x, 1), lambda a, b: a.min(b)) > integer(x, 0)


def _product_in_windows(x: Op, weights: Op, signs: Op, dtype: torch.dtype) -> Op:
    """``_product`` of any numbers, with what of them is in a window. ``signs`` [3 L, M] has up, down, and up again."""
    above, below, size = x.scalar_like(math.inf), x.scalar_like(-math.inf), weights.shape().sizes[0]
    marks = [mask.cast(x.shape().dtype) for mask in (x == above, x == below, x != x)]

    def infinity(begin: int) -> Op:
        """Infinity where a sum has some of one sign, or a NaN, which has both, as an infinity times 0 has."""
        same, other = (signs.slice_in_dim(size * i, size * (i + 1), 0) for i in (begin, begin + 1))
        found = [_product(m, s, dtype, "default") for m, s in zip(marks, (same, other, same + other), strict=True)]
        count = found[0] + found[1] + found[2]
        return (count > count.zeros_like()).select(count.scalar_like(math.inf), count.zeros_like())

    finite = (mkop("Abs", (x.op,)) < above).select(x, x.zeros_like())
    return _product(finite, weights, dtype) + infinity(0) - infinity(1)


@functools.lru_cache(maxsize=256)
def _computation(images: Operand, rows: Operand, columns: Operand):
    dtype = images.dtype

    def of_finite(y: Op, columns: Op, *_: Op) -> Op:
        return _product(y, columns, dtype)

    def of_any(y: Op, columns: Op, x: Op, rows: Op, row_signs: Op, column_signs: Op) -> Op:
        return _product_in_windows(_product_in_windows(x, rows, row_signs, dtype), columns, column_signs, dtype)

    def whole(x: Op, rows: Op, columns: Op, row_signs: Op, column_signs: Op) -> Op:
        y = _product(x, rows, dtype)
        operands = [y, columns, x, rows, row_signs, column_signs]
        return _is_finite(y.slice_in_dim(0, 1, 2)).mkconditional(operands, of_finite, of_any)

    signs = [Operand(dtype, (3 * m.sizes[0], m.sizes[1])) for m in (rows, columns)]
    return create_computation("resampled", whole, [shape_of(o) for o in (images, rows, columns, *signs)])


def resampled(x: Tensor, rows: Windows, columns: Windows) -> Tensor:
    """Images [N, C, H, W] with windows of rows, and then of columns, in place of the elements: [N, C, H', W']."""
    flat = x.flatten(0, 1)
    weights = [rows.weights / _MARGIN, columns.weights * _MARGIN]
    signs = [torch.cat([w.up, w.down, w.up]).to(x.dtype) for w in (rows, columns)]
    operands = [flat, *(matrix.contiguous().to(x.device) for matrix in (*weights, *signs))]
    made = _computation(*(Operand.of(t) for t in operands[:3]))
    found = torch_xla._XLAC._xla_user_computation("xla::resampled", operands, made)[0]
    return found.reshape(*x.shape[:2], *found.shape[1:])
