"""Attention of bfloat16 and float16 tensors from products of these, and the choice to round its weights.

The C++ half (``csrc/castoff/native_attention.cpp``) computes ``scaled_dot_product_attention``; here is what
``torch_xla.experimental`` offers beside it.
"""

import ctypes
import functools
import os
import sys
import warnings

import torch
from torch import _castoff as _torch_castoff

__all__ = ["install", "is_narrow_attention", "narrow_attention"]

#: The library, once the kernels are in place.
_native: ctypes.PyDLL | None = None


def narrow_attention(enable: bool) -> None:
    """Choose whether this process rounds the weights of bfloat16 and float16 attention.

    Args:
        enable: True to round the weights (the softmax of the scores) to the operands' dtype before their
            product with the value, and the gradient of the scores before its products, as flash attention
            does on other devices: half the memory, and fewer cycles. False for float32 in both, which is
            the default unless the environment has ``XLA_NARROW_ATTENTION=1``.

    It concerns ``torch.nn.functional.scaled_dot_product_attention`` of XLA tensors. A backward pass, a
    recomputation by ``torch.utils.checkpoint`` aside, does what its forward pass did. Functions of
    ``torch.compile`` are compiled again after a change: it resets dynamo.
    """
    if _native is None:
        _warn_disabled()
    elif bool(enable) != is_narrow_attention():
        _native.castoff_native_attention_set(bool(enable))
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()


def is_narrow_attention() -> bool:
    """Whether this process rounds the weights of bfloat16 and float16 attention."""
    return _native is not None and _native.castoff_native_attention_narrow()


@functools.cache
def _warn_disabled() -> None:
    warnings.warn(
        "castoff: narrow_attention has no effect, attention is computed as stock computes it: the topic "
        "native-attention, or matmul-out-dtype, which it needs, is disabled (CASTOFF_DISABLE).",
        stacklevel=3,
    )


def install() -> None:
    """Put the kernels in place, once; not without matmul-out-dtype, whose product they use."""
    global _native
    from . import _castoff

    if _native is not None or not _torch_castoff.enabled("matmul-out-dtype"):
        return
    _castoff.install_kernels("native-attention")
    library = _castoff.library()
    library.castoff_native_attention_set.argtypes = [ctypes.c_bool]
    library.castoff_native_attention_narrow.restype = ctypes.c_bool
    _native = library
    if os.environ.get("XLA_NARROW_ATTENTION", "0").lower() in ("1", "true"):
        narrow_attention(True)
