"""Slices with bounds beyond the tensor, clamped as torch does: all of it is C++ (``slice_bounds.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("slice-bounds")
