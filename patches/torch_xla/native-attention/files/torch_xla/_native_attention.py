"""Attention of bfloat16 and float16 tensors from products of these, and the choice to round its weights.

The C++ half (``csrc/castoff/native_attention.cpp``) computes ``scaled_dot_product_attention``; here is what
``torch_xla.experimental`` offers beside it.
"""

import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import _castoff as _torch_castoff

__all__ = ["install", "is_narrow_attention", "narrow_attention"]

#: The library, once the kernels are in place, and the registrations of those in Python.
_native: ctypes.PyDLL | None = None
_registrations: list[torch.library.Library] = []

#: What the C++ knows the choices as.
_CHOICES = {"auto": 0, False: 1, True: 2}

#: What the C++ calls weights that are narrow.
_NARROW = 2


def narrow_attention(enable: bool | Literal["auto"]) -> None:
    """Choose whether this process rounds the weights of bfloat16 and float16 attention.

    Args:
        enable: True to round the weights (the softmax of the scores) to the operands' dtype before their
            product with the value, and the gradient of the scores before its products, as flash attention
            does on other devices: half the memory. False for float32 in all of it.

            "auto", the default, is float32 too, but on a TPU at default precision
            (``torch_xla.backends.set_mat_mul_precision``), whose matrix unit rounds what it multiplies to
            bfloat16 in any case: there the weights of bfloat16 operands and the gradient of the scores are
            rounded for their products. Where float32 weights would crowd the memory next to the cores, the
            weights and the result that wait for the backward pass are rounded as well. Not so if the square
            root of ``scale`` is a power of two (heads of 16 or 256, scale=1): torch's formula multiplies
            query and key by it, which rounds them on a TPU otherwise, and no result is to be less accurate
            than that formula's.

            The environment variable ``XLA_NARROW_ATTENTION`` is the choice of a process: 1, 0 or auto.

    Raises:
        ValueError: It is none of the three.

    It concerns ``torch.nn.functional.scaled_dot_product_attention`` of XLA tensors. A backward pass, a
    recomputation by ``torch.utils.checkpoint`` aside, does what its forward pass did. Functions of
    ``torch.compile`` are compiled again after a change: it resets dynamo.
    """
    if enable not in _CHOICES:
        raise ValueError(f'narrow_attention: expected True, False or "auto", found {enable!r}')
    if _native is None:
        _warn_disabled()
    else:
        _change(_native.castoff_native_attention_choose, _CHOICES[enable])


def is_narrow_attention() -> bool:
    """Whether this process was told to round the weights of attention: not so with "auto"."""
    return _native is not None and _native.castoff_native_attention_weights() == _NARROW


def _change(setter: Callable[[int], None], value: int) -> None:
    """Set what the form of attention depends on; let dynamo forget the other form."""
    before = _native.castoff_native_attention_weights()
    setter(value)
    if before != _native.castoff_native_attention_weights() and "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def trace_for_tpu(enable: bool) -> None:
    """Let this process, whose device is another one, trace what it would on a TPU.

    For tools that compile for a TPU without one; ``CASTOFF_TRACE_FOR=TPU`` in the environment does so from the
    import of torch_xla on.
    """
    if _native is not None:
        _change(_native.castoff_native_attention_trace_for_tpu, bool(enable))


@functools.cache
def _warn_disabled() -> None:
    warnings.warn(
        "castoff: narrow_attention has no effect, attention is computed as stock computes it: the topic "
        "native-attention, or matmul-out-dtype, which it needs, is disabled (CASTOFF_DISABLE).",
        stacklevel=3,
    )


def _set_precision(precision: str) -> None:
    """Tell the C++ half whether matrix products have the default precision."""
    _change(_native.castoff_native_attention_default_precision, precision == "default")


def _optimization_barrier(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same tensors, which XLA computes nothing across: neither is anything after it found before it."""
    from torch_xla import _XLAC

    same = [torch.ops.aten.detach_copy(t) for t in tensors]
    _XLAC._xla_optimization_barrier_(same)
    return same


def install() -> None:
    """Put the kernels in place, once; not without matmul-out-dtype, whose product they use."""
    global _native
    from . import _castoff

    if _native is not None or not _torch_castoff.enabled("matmul-out-dtype"):
        return
    _castoff.install_kernels("native-attention")
    kernels = torch.library.Library("castoff", "IMPL")
    kernels.impl("optimization_barrier", _castoff.untraced(_optimization_barrier), "XLA")
    kernels.impl("optimization_barrier", lambda tensors: [torch.empty_like(t) for t in tensors], "Meta")
    _registrations.append(kernels)
    library = _castoff.library()
    for setter in ("choose", "trace_for_tpu", "default_precision"):
        getattr(library, f"castoff_native_attention_{setter}").argtypes = [ctypes.c_int]
    _native = library
    _castoff.follow_matmul_precision(_set_precision)
    asked = os.environ.get("XLA_NARROW_ATTENTION", "auto").lower()
    narrow_attention({"1": True, "true": True, "0": False, "false": False}.get(asked, "auto"))
