"""Means, softmax and losses of half dtypes, computed in float32: all of it is C++ (``wide_reductions.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("wide-reductions")
