"""Matrix products that return a wider dtype than their operands', as one ``xla::dot_general``.

The C++ half (``csrc/castoff/matmul_out_dtype.cpp``) decides which calls these are; here is the one
operator that it makes of them. It takes what ``jax.lax.dot_general`` takes.
"""

import ctypes

import torch
import torch_xla
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)

from . import _castoff

__all__ = ["install"]

_registrations: list[torch.library.Library] = []


def _dot_general(lhs, rhs, lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, preferred_element_type):
    contracting = (list(lhs_contracting), list(rhs_contracting))
    batch = (list(lhs_batch), list(rhs_batch))
    return torch_xla._XLAC._xla_dot_general(lhs, rhs, (contracting, batch), None, preferred_element_type)


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
    sizes = [lhs.shape[i] for i in lhs_batch]
    sizes += [size for i, size in enumerate(lhs.shape) if i not in lhs_batch and i not in lhs_contracting]
    sizes += [size for i, size in enumerate(rhs.shape) if i not in rhs_batch and i not in rhs_contracting]
    return lhs.new_empty(sizes, dtype=preferred_element_type)


# Where torch.compile executes lazy tensors this runs under dynamo, which is not to trace it.
set_code_exec_strategy(_dot_general.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))


def install() -> None:
    """Register the kernels, once, above those that torch and torch_xla registered."""
    if _registrations:
        return
    native = _castoff.library().castoff_matmul_out_dtype_install
    native.restype = ctypes.c_char_p
    error = native()
    if error is not None:
        raise ImportError(f"castoff: matmul-out-dtype cannot take its place: {error.decode()}")
    kernels = torch.library.Library("castoff", "IMPL")
    kernels.impl("dot_general", _dot_general, "XLA")
    kernels.impl("dot_general", _dot_general_meta, "Meta")
    _registrations.append(kernels)
