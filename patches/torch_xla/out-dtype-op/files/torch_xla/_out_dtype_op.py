"""torch.ops.higher_order.out_dtype on XLA: native ops whose result is wider than their operands."""

from . import _convolution

__all__ = ["install"]


def install() -> None:
    """Put the topic in force, once."""
    _convolution.install()
