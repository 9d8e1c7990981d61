"""A cast back to the dtype that a tensor was exactly widened from is no cast: all of it is C++."""

import ctypes

from . import _castoff, _lazy_ir

__all__ = ["install"]

_installed = False


def install() -> None:
    """Put the kernels of ``csrc/castoff/exact_casts.cpp`` before torch_xla's own, once."""
    global _installed
    if _installed or not _lazy_ir.supported():
        return
    native = _castoff.library().castoff_exact_casts_install
    native.restype = ctypes.c_char_p
    error = native()
    if error is not None:
        raise ImportError(f"castoff: exact-casts cannot take its place: {error.decode()}")
    _installed = True
