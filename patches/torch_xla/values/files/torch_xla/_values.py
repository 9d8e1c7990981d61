"""Operators whose values torch_xla gets wrong, or refuses: all of it is C++ (``values.cpp``, ``resampling.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("values")
