"""Matrix products that return a wider dtype than their operands', as one ``xla::dot_general``.

The C++ half (``csrc/castoff/matmul_out_dtype.cpp``) decides which calls these are; here is the one
operator that it makes of them. It takes what ``jax.lax.dot_general`` takes.
"""

import functools
import os
from collections.abc import Sequence
from typing import Optional

import torch
import torch_xla

from . import _castoff
from ._hlo_module import Operand, computation, message, run

__all__ = ["install"]

_registrations: list[torch.library.Library] = []


@functools.lru_cache(maxsize=4096)
def _dot_computation(lhs: Operand, rhs: Operand, result: Operand, dimensions: tuple, precision: str):
    attributes = message((30, message(*enumerate(dimensions, start=1))))
    return computation("dot", lhs, rhs, result, attributes, precision)


@_castoff.untraced
def _dot_general(lhs, rhs, lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, preferred_element_type):
    dimensions = tuple(map(tuple, (lhs_contracting, rhs_contracting, lhs_batch, rhs_batch)))
    if (asked := _castoff.matmul_precision()) == "default":
        numbers = tuple(map(list, dimensions[:2])), tuple(map(list, dimensions[2:]))
        return torch_xla._XLAC._xla_dot_general(lhs, rhs, numbers, None, preferred_element_type)
    result = Operand(preferred_element_type, tuple(_sizes(lhs, rhs, *dimensions)))
    made = _dot_computation(Operand.of(lhs), Operand.of(rhs), result, dimensions, asked)
    return run("dot_general", made, lhs, rhs)


def _sizes(lhs, rhs, lhs_contracting, rhs_contracting, lhs_batch, rhs_batch):
    sizes = [lhs.shape[i] for i in lhs_batch]
    sizes += [size for i, size in enumerate(lhs.shape) if i not in lhs_batch and i not in lhs_contracting]
    sizes += [size for i, size in enumerate(rhs.shape) if i not in rhs_batch and i not in rhs_contracting]
    return sizes


def _dot_general_meta(lhs, rhs, lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, preferred_element_type):
    paired = zip((*lhs_batch, *lhs_contracting), (*rhs_batch, *rhs_contracting), strict=True)
    for i, j in paired:
        torch._check(
            lhs.shape[i] == rhs.shape[j],
            lambda i=i, j=j: (
                f"dot_general: expected dimension {i} of lhs and {j} of rhs to be of one size, but "
                f"found {tuple(lhs.shape)} and {tuple(rhs.shape)}"
            ),
        )
    sizes = _sizes(lhs, rhs, lhs_contracting, rhs_contracting, lhs_batch, rhs_batch)
    return lhs.new_empty(sizes, dtype=preferred_element_type)


def _permuted(dot: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """``dot``, whose dimension i is dimension order[i] of the result."""
    permutation = sorted(range(len(order)), key=order.__getitem__)
    return dot if permutation == list(range(len(order))) else dot.permute(permutation)


def _gradient(grad, grad_free, other, contracting, other_contracting, batch, other_batch, free) -> torch.Tensor:
    """The gradient of one factor of a dot_general, of the output's gradient and the other factor.

    ``grad_free`` is where the factor's free dimensions stand in ``grad``; ``contracting``, ``batch``
    and ``free`` are the factor's own dimensions, those that begin with ``other`` the other factor's.
    """
    other_free = [i for i in range(other.dim()) if i not in other_contracting and i not in other_batch]
    grad_batch = list(range(len(batch)))
    summed = [i for i in range(len(batch), grad.dim()) if i not in grad_free]
    by_other = [i for _, i in sorted(zip(other_contracting, contracting, strict=True))]
    dot_general = torch.ops.castoff.dot_general
    # Of the two orders of the operands the one that needs no transpose, if there is one.
    order = [*batch, *by_other, *free]
    if order == sorted(order):
        return dot_general(other, grad, other_free, summed, other_batch, grad_batch, grad.dtype)
    dot = dot_general(grad, other, summed, other_free, grad_batch, other_batch, grad.dtype)
    return _permuted(dot, [*batch, *free, *by_other])


def _save_factors(ctx, inputs, output) -> None:
    lhs, rhs, *ctx.dimensions, _ = inputs
    ctx.save_for_backward(lhs if ctx.needs_input_grad[1] else None, rhs if ctx.needs_input_grad[0] else None)
    ctx.ranks = lhs.dim(), rhs.dim()


def _dot_general_backward(ctx, grad):
    """Gradients of both factors: dot_general with the output's gradient, uncast, in that gradient's dtype.

    That is what ``jax.lax.dot_general`` does with its ``preferred_element_type``: the wide cotangent meets
    the narrow factor in one dot of mixed dtypes, which accumulates and returns in the wide one. What is
    narrower, the factor's own dtype say, the engine makes of it afterwards, in one rounding.
    """
    lhs, rhs = ctx.saved_tensors
    lhs_contracting, rhs_contracting, lhs_batch, rhs_batch = map(list, ctx.dimensions)
    lhs_free = [i for i in range(ctx.ranks[0]) if i not in lhs_contracting and i not in lhs_batch]
    rhs_free = [i for i in range(ctx.ranks[1]) if i not in rhs_contracting and i not in rhs_batch]
    in_grad = range(len(lhs_batch), len(lhs_batch) + len(lhs_free) + len(rhs_free))
    of_lhs, of_rhs = in_grad[: len(lhs_free)], in_grad[len(lhs_free) :]
    grads: list[Optional[torch.Tensor]] = [None] * 7
    if rhs is not None:
        grads[0] = _gradient(grad, of_lhs, rhs, lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, lhs_free)
    if lhs is not None:
        grads[1] = _gradient(grad, of_rhs, lhs, rhs_contracting, lhs_contracting, rhs_batch, lhs_batch, rhs_free)
    return tuple(grads)


def _keep_xnnpack_out() -> None:
    """Have XLA:CPU run every dot of two bfloat16 factors and a float32 result.

    With XNNPACK it leaves such dots as they are, for XNNPACK to run, and later folds transposes into them that
    XNNPACK does not know ("Unsupported element type for DotThunk", when the graph runs). Without it the factors
    are widened first, which is exact; no other dot has been seen to change. XLA reads its flags when the client
    is made, after this; as with the flag that torch_xla sets there, the user's own one stands. The XLA of
    torch_xla before 2.7 has neither XNNPACK nor the flag, and aborts on flags that it does not know.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    has_xnnpack = tuple(map(int, torch_xla.__version__.split(".")[:2])) >= (2, 7)
    if has_xnnpack and os.environ.get("PJRT_DEVICE") == "CPU" and "xla_cpu_use_xnnpack" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_xnnpack=false".strip()


def install() -> None:
    """Register the kernels, once, above those that torch and torch_xla registered."""
    if _registrations:
        return
    _keep_xnnpack_out()
    _castoff.install_kernels("matmul-out-dtype")
    kernels = torch.library.Library("castoff", "IMPL")
    kernels.impl("dot_general", _dot_general, "XLA")
    kernels.impl("dot_general", _dot_general_meta, "Meta")
    torch.library.register_autograd(
        "castoff::dot_general", _dot_general_backward, setup_context=_save_factors, lib=kernels
    )
    torch.library.register_autograd("castoff::widen", lambda ctx, grad: (grad, None), lib=kernels)
    _registrations.append(kernels)
