"""Products of tensors that were exactly widened take these as they were before: all of it is C++."""

import os

from torch import _castoff as _torch_castoff

__all__ = ["install"]

_installed = False


def _device_runs_wide_products() -> bool:
    """Whether the device runs a dot whose result is wider than its operands, wherever it stands in a graph.

    Where PJRT_DEVICE is CPU, XLA does so without XNNPACK alone. matmul-out-dtype turns that off, but for users
    who have set the flag themselves: their programs have to run as before.
    """
    if os.environ.get("PJRT_DEVICE") != "CPU":
        return True
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "xla_cpu_use_xnnpack" in flag]
    return not flags or flags[-1].endswith(("=false", "=0"))


def install() -> None:
    """Put the kernels of ``csrc/castoff/exact_dots.cpp`` in place, once; not without matmul-out-dtype's product."""
    global _installed
    from . import _castoff, _lazy_ir

    if _installed or not _torch_castoff.enabled("matmul-out-dtype"):
        return
    if not _device_runs_wide_products() or not _lazy_ir.supported():
        return
    _castoff.install_kernels("exact-dots")
    _installed = True
