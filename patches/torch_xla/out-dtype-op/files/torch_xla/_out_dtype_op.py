"""torch.ops.higher_order.out_dtype on XLA: one native op whose result is wider than its operands.

``out_dtype(op, dtype, *args)`` is upstream's (pytorch/pytorch#103333), with upstream's list of ops, shapes,
values and errors; what differs on XLA tensors is how it is computed, and that it differentiates:

* mm, linear, conv2d and convolution of bfloat16, float16 or float8 operands with dtype float32, and of int8
  operands with dtype int32, become one ``dot_general`` or one ``convolution`` that reads the operands as
  they are and accumulates and returns in ``dtype``. A bias that is narrower than ``dtype`` is widened.
* All else (mul, div, other dtypes) casts its operands, as upstream does for every device; float8 ones, whose
  result upstream rounds to float8 first, to ``dtype``.
* Floating-point operands have gradients: each arrives in ``dtype`` and is rounded once, to the operand's own
  dtype, or not at all where the operand is a leaf, or a view of one, whose ``grad_dtype`` is ``dtype``. They
  differentiate again. Forward-mode derivatives raise NotImplementedError; so does an op on integer
  operands, or with an integer ``dtype``, of which an operand requires grad.
"""

from collections.abc import Sequence
from typing import Optional

import torch
from torch import _castoff
from torch._C import DispatchKey
from torch._higher_order_ops.out_dtype import out_dtype, out_dtype_dense
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from . import _convolution

__all__ = ["install"]

_aten = torch.ops.aten

_PRODUCTS = (
    _aten.mm.default,
    _aten.linear.default,
    _aten.conv2d.default,
    _aten.convolution.default,
)

_FLOAT8 = {torch.float8_e4m3fn, torch.float8_e5m2}

# The dtypes that the two operands of a native op may have, by that of its result.
_OPERANDS = {
    torch.float32: {torch.bfloat16, torch.float16, *_FLOAT8},
    torch.int32: {torch.int8},
}


def _is_native(dtype: torch.dtype, operands: Sequence[torch.Tensor], bias: Optional[torch.Tensor]) -> bool:
    first, second = (operand.dtype for operand in operands)
    return first == second and first in _OPERANDS.get(dtype, ()) and (bias is None or bias.dtype in (first, dtype))


def _plus_bias(result: torch.Tensor, bias: Optional[torch.Tensor], trailing: int) -> torch.Tensor:
    """``result`` plus a bias of one number for each index of the dimension before ``trailing`` others."""
    if bias is None:
        return result
    wide = bias if bias.dtype == result.dtype else torch.ops.castoff.widen(bias, result.dtype)
    return result + wide.view(-1, *[1] * trailing)


def _mm(dtype, self, mat2):
    if self.dim() != 2 or mat2.dim() != 2 or self.shape[1] != mat2.shape[0]:
        return None
    return torch.ops.castoff.dot_general(self, mat2, [1], [0], [], [], dtype)


def _linear(dtype, input, weight, bias=None):
    if input.dim() == 0 or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    # As a matrix: XLA:CPU has no product of narrow operands with several free dimensions.
    rows = input if input.dim() <= 2 else input.flatten(0, -2)
    product = torch.ops.castoff.dot_general(rows, weight, [rows.dim() - 1], [1], [], [], dtype)
    return _plus_bias(product.view(*input.shape[:-1], -1), bias, trailing=0)


def _conv2d(dtype, input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    batched = input if input.dim() == 4 else input.unsqueeze(0)
    result = _convolve(dtype, batched, weight, bias, stride, padding, dilation, False, (0, 0), groups)
    return result if result is None or input.dim() == 4 else result.squeeze(0)


def _convolve(dtype, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    result = torch.ops.castoff.convolution(
        input, weight, stride, padding, dilation, transposed, output_padding, groups, dtype
    )
    if bias is not None and bias.shape != result.shape[1:2]:
        return None
    return _plus_bias(result, bias, trailing=result.dim() - 2)


_NATIVE = dict(zip(_PRODUCTS, (_mm, _linear, _conv2d, _convolve), strict=True))


def _native(op, dtype: torch.dtype, args: tuple) -> Optional[torch.Tensor]:
    """``op(*args)`` as one native op with a result of ``dtype``; None if there is none, or ``op`` will raise."""
    if op not in _NATIVE or not _is_native(dtype, args[:2], args[2] if len(args) > 2 else None):
        return None
    return _NATIVE[op](dtype, *args)


def _widened(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    floating = tensor.is_floating_point() and dtype.is_floating_point
    return torch.ops.castoff.widen(tensor, dtype) if floating else tensor.to(dtype)


def _has_float8(args: tuple) -> bool:
    return any(isinstance(arg, torch.Tensor) and arg.dtype in _FLOAT8 for arg in pytree.arg_tree_leaves(*args))


def _by_casts(op, dtype: torch.dtype, args: tuple) -> torch.Tensor:
    """What upstream's out_dtype_fallback computes, with gradients that stay as wide as the result.

    torch promotes no float8 dtype, and takes it for the dtype of the whole: there, dtype itself is that.
    """
    promoted = dtype
    if not _has_float8(args):
        kinds = [*pytree.arg_tree_leaves(*args), torch.ones(1, dtype=dtype)]
        promoted, _ = elementwise_dtypes(*kinds, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    wide = pytree.tree_map_only(torch.Tensor, lambda tensor: _widened(tensor, promoted), args)
    return op(*wide).to(dtype)


def _check_differentiable(op, dtype: torch.dtype, tensors: Sequence[torch.Tensor]) -> None:
    found = ", ".join(str(tensor.dtype) for tensor in tensors)
    if not dtype.is_floating_point or (op in _NATIVE and not all(t.is_floating_point() for t in tensors)):
        raise NotImplementedError(
            f"out_dtype({op}) has no gradient here: an operand requires grad, for which all operands and the "
            f"dtype of the result have to be floating point, but found {found} and {dtype}. Detach the operand, "
            "or run it under torch.no_grad()"
        )


def _xla(op, dtype, *args):
    result = _native(op, dtype, args)
    if result is not None:
        return result
    if op in _NATIVE:
        # Raises if the operands do not fit, for which torch_xla before 2.9 ends the process.
        op(*pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), args))
    return _by_casts(op, dtype, args) if _has_float8(args) else out_dtype_dense(op, dtype, *args)


def _autograd_xla(op, dtype, *args):
    tensors = [arg for arg in pytree.arg_tree_leaves(*args) if isinstance(arg, torch.Tensor)]
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            f"out_dtype({op}) has no forward-mode derivative: expected operands without tangents. Convert the "
            "operands to the wide dtype and call the op itself, or use reverse mode"
        )
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        _check_differentiable(op, dtype, tensors)
        result = _native(op, dtype, args)
        return _by_casts(op, dtype, args) if result is None else result
    with torch._C._AutoDispatchBelowAutograd():
        return out_dtype(op, dtype, *args)


def install() -> None:
    """Install the topic, once; not without matmul-out-dtype, whose products it uses."""
    if not _castoff.enabled("matmul-out-dtype"):
        return
    _convolution.install()
    if DispatchKey.XLA not in out_dtype.py_kernels:
        out_dtype.py_impl(DispatchKey.XLA)(_xla)
        out_dtype.py_impl(DispatchKey.AutogradXLA)(_autograd_xla)
