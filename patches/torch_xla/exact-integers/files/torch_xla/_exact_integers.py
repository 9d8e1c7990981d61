"""Quotients of integers, all bits of them: all of it is C++ (``exact_integers.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("exact-integers")
