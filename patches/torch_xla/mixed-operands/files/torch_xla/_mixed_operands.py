"""Operators on XLA whose operands have different float dtypes: promoted or refused as on the CPU.

All of it is C++ (``csrc/castoff/mixed_operands.cpp``); this puts it in force.
"""

import ctypes

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Stand before torch_xla's kernels. Called once, by ``_castoff``."""
    native = _castoff.library().castoff_mixed_operands_install
    native.restype = ctypes.c_char_p
    error = native()
    if error is not None:
        raise ImportError(f"castoff: mixed-operands cannot take its place: {error.decode()}")
