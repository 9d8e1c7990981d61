"""Buffers that two tensors have are not donated: patches/torch_xla/shared-buffers."""

import ctypes
import functools
from array import array
from operator import attrgetter

import _XLAC
import torch
from torch import _castoff as _torch_castoff

from . import _castoff

__all__ = ["install"]


def install() -> None:
    """Let copies say, to torch's half of graph-identity, which buffer they share with their source."""
    add = _torch_castoff.library().castoff_graph_identity_add_shared_buffer
    _castoff.install_kernels("shared-buffers", ctypes.cast(add, ctypes.c_void_p))
    taken, run = _castoff.library().castoff_shared_buffers_taken, _XLAC._run_cached_graph
    taken.restype, taken.argtypes = None, (ctypes.c_void_p, ctypes.c_size_t)
    impl_of = attrgetter("_cdata")

    @functools.wraps(run)
    def run_cached_graph(graph: bytes, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """It takes the buffer of a clone, as a read does."""
        impls = array("Q", map(impl_of, inputs))
        taken(impls.buffer_info()[0], len(impls))
        return run(graph, inputs)

    _XLAC._run_cached_graph = run_cached_graph
