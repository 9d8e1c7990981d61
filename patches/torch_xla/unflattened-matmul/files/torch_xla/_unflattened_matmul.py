"""Products of flattened tensors, computed unflattened on a TPU: all of it is C++ (``unflattened_matmul.cpp``)."""

import os

from torch import _castoff as _torch_castoff

__all__ = ["install"]


def install() -> None:
    """Put the kernels in place; not without the product and the reading of IR that they stand on. Called once."""
    from . import _castoff, _lazy_ir

    # Without functionalization a view has no IR.
    if os.environ.get("XLA_DISABLE_FUNCTIONALIZATION", "0") not in ("", "0"):
        return
    if _torch_castoff.enabled("matmul-out-dtype") and _lazy_ir.supported():
        _castoff.install_kernels("unflattened-matmul")
        set_precision, known = _castoff.library().castoff_unflattened_matmul_precision, ("default", "high", "highest")
        _castoff.follow_matmul_precision(lambda precision: set_precision(known.index(precision)))
