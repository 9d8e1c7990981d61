"""In-place operators without a second run on meta tensors: all of it is C++ (``lean_functionalization.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override functionalization's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("lean-functionalization")
