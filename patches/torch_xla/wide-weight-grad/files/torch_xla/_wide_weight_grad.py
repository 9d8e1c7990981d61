"""Float32 gradients of bfloat16 and float16 weights, straight from operators that accumulate in float32.

For a weight whose ``grad_dtype`` (torch's topic grad-dtype) is wider than itself. The kernels are in C++,
``csrc/castoff/wide_weight_grad.h``; here they are given what they need of torch's half, and put in place.
"""

import ctypes

from torch import _castoff as _torch_castoff

from . import _castoff

__all__ = ["install"]

_installed = False


def install() -> None:
    """Register the kernels, once, above those that torch and torch_xla registered.

    Without the topic grad-dtype no weight can ask for anything, and nothing is done.
    """
    global _installed
    if _installed or not _torch_castoff.enabled("grad-dtype"):
        return
    torch_half = _torch_castoff.library()
    torch_half.castoff_grad_dtype_tensors_in_use.restype = ctypes.c_void_p
    native = _castoff.library().castoff_wide_weight_grad_install
    native.restype = ctypes.c_char_p
    native.argtypes = ctypes.c_void_p, ctypes.c_void_p
    error = native(
        torch_half.castoff_grad_dtype_tensors_in_use(),
        ctypes.cast(torch_half.castoff_grad_dtype_over_edge, ctypes.c_void_p),
    )
    if error is not None:
        raise ImportError(f"castoff: wide-weight-grad cannot take its place: {error.decode()}")
    _installed = True
