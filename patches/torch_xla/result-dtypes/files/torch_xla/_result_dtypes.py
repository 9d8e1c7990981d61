"""Results on XLA in the dtype to which torch promotes their operands: all of it is C++ (``result_dtypes.cpp``)."""

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Override torch_xla's kernels. Called once, by ``_castoff``."""
    _castoff.install_kernels("result-dtypes")
