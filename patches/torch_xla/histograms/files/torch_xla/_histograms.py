"""histc and bincount on the device: all of it is C++ (``histograms.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("histograms")
