"""Float32 gradients of bfloat16 and float16 weights, straight from operators that accumulate in float32.

For a weight whose ``grad_dtype`` (torch's topic grad-dtype) is wider than itself. The kernels are in C++,
``csrc/castoff/wide_weight_grad.h``; here they are given what they need of torch's half, and put in place.
"""

import ctypes

import torch
from torch import _castoff as _torch_castoff
from torch import _grad_dtype

from . import _castoff, _wide_optimizers

__all__ = ["install"]

#: Without grad-dtype no weight can ask for anything; the other two have the operators that answer.
_NEEDS = ("grad-dtype", "matmul-out-dtype", "out-dtype-op")

_installed = False


def install() -> None:
    """Register the kernels, once, above those that torch and torch_xla registered.

    Where a topic that they need is switched off, nothing is done: the engine casts, as without this topic.
    """
    global _installed
    if _installed or not all(map(_torch_castoff.enabled, _NEEDS)):
        return
    torch_half = _torch_castoff.library()
    torch_half.castoff_grad_dtype_tensors_in_use.restype = ctypes.c_void_p
    _castoff.install_kernels(
        "wide-weight-grad",
        ctypes.c_void_p(torch_half.castoff_grad_dtype_tensors_in_use()),
        ctypes.cast(torch_half.castoff_grad_dtype_over_edge, ctypes.c_void_p),
        ctypes.cast(torch_half.castoff_grad_dtype_declare, ctypes.c_void_p),
    )
    _grad_dtype.at_first_use(_install_functions)
    _grad_dtype.at_first_use(_wide_optimizers.install)
    _installed = True


def _install_functions() -> None:
    """Register the kernels of functions of weights, which a process without a grad_dtype does not have."""
    _castoff.install_kernels("wide-functions")
    # torch.ops, by which dynamo's traces call, remembers what a dispatch key led to before.
    for packet in list(vars(torch.ops.aten).values()):
        for overload in list(vars(packet).values()) if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            if isinstance(overload, torch._ops.OpOverload):
                overload._dispatch_cache.pop(torch._C.DispatchKey.AutogradXLA, None)
