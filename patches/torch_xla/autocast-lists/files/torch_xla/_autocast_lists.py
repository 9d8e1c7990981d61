"""Autocast casts what torch's lists for CUDA cast: all of it is C++ (``csrc/castoff/autocast_lists.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Register what torch_xla's lists leave out. Called once, by ``_castoff``."""
    _castoff.install_kernels("autocast-lists")
