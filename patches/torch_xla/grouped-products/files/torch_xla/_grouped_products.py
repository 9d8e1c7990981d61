"""grouped_mm on XLA tensors: all of it is C++ (``grouped_products.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Give the operator a kernel for XLA. Called once, by ``_castoff``."""
    _castoff.install_kernels("grouped-products")
