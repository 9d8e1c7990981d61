"""Buffers that two tensors have are not donated: patches/torch_xla/shared-buffers."""

import ctypes

from torch import _castoff as _torch_castoff

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Let copies say, to torch's half of graph-identity, which buffer they share with their source."""
    add = _torch_castoff.library().castoff_graph_identity_add_shared_buffer
    _castoff.install_kernels("shared-buffers", ctypes.cast(add, ctypes.c_void_p))
