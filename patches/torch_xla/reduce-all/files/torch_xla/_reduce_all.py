"""Reductions over an empty list of dimensions, and those of 0-d tensors: all of it is C++ (``reduce_all.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("reduce-all")
