"""Operators on XLA whose operands have different float dtypes: promoted or refused as on the CPU.

All of it is C++ (``csrc/castoff/mixed_operands.cpp``); this installs it.
"""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Stand before torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("mixed-operands")
