"""A cast back to the dtype that a tensor was exactly widened from is no cast: all of it is C++."""

import contextlib
import ctypes
from collections.abc import Iterator

__all__ = ["install", "keep_apart"]

#: The library, once the kernels are in place.
_native: ctypes.PyDLL | None = None


@contextlib.contextmanager
def keep_apart() -> Iterator[None]:
    """A block in which a cast that gives device data back has a node of its own, in this thread.

    torch.compile's bridge tells a graph's outputs from its arguments by their nodes, and loses an output that
    has an argument's.
    """
    if _native is None:
        yield
        return
    outer = _native.castoff_exact_casts_keep_apart(True)
    try:
        yield
    finally:
        _native.castoff_exact_casts_keep_apart(outer)


def install() -> None:
    """Put the kernels of ``csrc/castoff/exact_casts.cpp`` before torch_xla's own, once."""
    global _native
    from . import _castoff, _lazy_ir  # not above: dynamo_bridge imports this module before the topics' turn comes

    if _native is not None or not _lazy_ir.supported():
        return
    _castoff.install_kernels("exact-casts")
    library = _castoff.library()
    library.castoff_exact_casts_keep_apart.argtypes = [ctypes.c_bool]
    library.castoff_exact_casts_keep_apart.restype = ctypes.c_bool
    _native = library
