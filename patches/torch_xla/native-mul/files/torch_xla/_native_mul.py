"""The choice how torch_xla multiplies bfloat16 and float16 tensors.

Stock torch_xla casts both to float32, multiplies and casts back; some compilers (Neuron's) rely on it
(pytorch/xla#8545, #9663, #9701). ``torch_xla.experimental.native_mul`` and its kin, which are defined here,
ask for a product in the tensors' own dtype instead.
"""

import contextlib
import ctypes
import functools
import os
import warnings
from collections.abc import Iterator

__all__ = ["install", "is_native_mul", "native_mul", "native_mul_context", "state_of_compilation"]

#: The library, once the kernel is in place.
_native: ctypes.PyDLL | None = None

#: What a block says; the C++ knows these numbers.
_ENABLE, _DISABLE = 1, 2


def native_mul(enable: bool) -> None:
    """Choose how this process multiplies two bfloat16 or two float16 XLA tensors.

    Args:
        enable: True for one multiply in the tensors' dtype, False for stock torch_xla's float32 multiply
            between casts, which is the default unless the environment has ``XLA_NATIVE_MUL=1``.

    It concerns every multiplication of two tensors of one such dtype, of any shapes that broadcast:
    ``*``, ``mul_``, ``out=``, ``torch._foreach_mul`` with tensors, and those of backward passes. A Python
    number is multiplied in float32 in either case, since in bfloat16 it would be another number; so is a
    tensor of another dtype. Operations that stock computes natively (``addcmul``, ``div``, ``square``, …)
    stay as they are, and so does eager mode, where every operation runs alone.

    With True ``gelu``, ``log_softmax``, ``layer_norm`` and ``group_norm`` of bfloat16 tensors stay in bfloat16, too,
    as on stock. Otherwise topic `values` computes them in float32 and rounds once, as torch's own kernels do.
    """
    if _enabled():
        _native.castoff_native_mul_set(bool(enable))


def is_native_mul() -> bool:
    """Whether this thread, here, multiplies bfloat16 and float16 tensors natively."""
    return _native is not None and _native.castoff_native_mul_enabled()


@contextlib.contextmanager
def native_mul_context(enable: bool = True) -> Iterator[None]:
    """A block of code for which `native_mul` is as given, in this thread alone; blocks nest.

    What counts is the block in which a multiplication is traced, not the one in which it is executed. A
    backward pass follows the block around the call of ``backward`` or ``torch.autograd.grad``, whichever
    block the forward pass had: autograd carries it into its threads. A function of
    ``torch.compile(backend="openxla")`` is compiled again for the block in which it is called.
    """
    if not _enabled():
        yield
        return
    outer = _native.castoff_native_mul_enter(_ENABLE if enable else _DISABLE)
    try:
        yield
    finally:
        _native.castoff_native_mul_enter(outer)


def state_of_compilation() -> tuple[str, ...]:
    """What a graph that torch.compile keeps depends on: to be part of its key. Empty by default."""
    return ("native_mul",) if is_native_mul() else ()


def _enabled() -> bool:
    """Whether the topic is on; warns, once, if it is not."""
    if _native is None:
        _warn_disabled()
    return _native is not None


@functools.cache
def _warn_disabled() -> None:
    warnings.warn(
        "castoff: native_mul has no effect, torch_xla multiplies as stock: the topic native-mul is disabled "
        "(CASTOFF_DISABLE) or does not know this build of torch_xla.",
        stacklevel=4,
    )


def install() -> None:
    """Put the kernel of ``csrc/castoff/native_mul.cpp`` before torch_xla's own, once."""
    global _native
    from . import _castoff, _lazy_ir

    if _native is not None or not _lazy_ir.supported():
        return
    _castoff.install_kernels("native-mul")
    library = _castoff.library()
    library.castoff_native_mul_set.argtypes = [ctypes.c_bool]
    library.castoff_native_mul_enabled.restype = ctypes.c_bool
    _native = library
    if os.environ.get("XLA_NATIVE_MUL", "0").lower() in ("1", "true"):
        native_mul(True)
