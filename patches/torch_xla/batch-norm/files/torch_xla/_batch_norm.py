"""BatchNorm's running variance, and its backward in evaluation mode: all of it is C++ (``batch_norm.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("batch-norm")
