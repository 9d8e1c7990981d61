"""Buffers that two tensors have are not donated: patches/torch_xla/shared-buffers."""

import ctypes
import functools
from array import array
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import _XLAC
import torch
from torch import _castoff as _torch_castoff

from . import _castoff

__all__ = ["install"]


_impl_of = attrgetter("_cdata")


def install() -> None:
    """Let copies say, to torch's half of graph-identity, which buffer they share with their source."""
    add = _torch_castoff.library().castoff_graph_identity_add_shared_buffer
    _castoff.install_kernels("shared-buffers", ctypes.cast(add, ctypes.c_void_p))
    _XLAC._run_cached_graph = _taking_buffers(_XLAC._run_cached_graph)
    _XLAC._xla_sync_multi = _computing_a_part(_XLAC._xla_sync_multi)


def _taking_buffers(run: Callable) -> Callable:
    """A compiled function takes the buffer of a clone, as a read does."""
    taken = _castoff.library().castoff_shared_buffers_taken
    taken.restype, taken.argtypes = None, (ctypes.c_void_p, ctypes.c_size_t)

    @functools.wraps(run)
    def run_cached_graph(graph: bytes, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        impls = array("Q", map(_impl_of, inputs))
        taken(impls.buffer_info()[0], len(impls))
        return run(graph, inputs)

    return run_cached_graph


def _computing_a_part(sync: Callable) -> Callable:
    """What is pending besides these tensors may read a buffer that they would overwrite."""
    library = _torch_castoff.library()
    begin, end = library.castoff_graph_identity_begin_part, library.castoff_graph_identity_end_part
    begin.restype = end.restype = None

    @functools.wraps(sync)
    def sync_multi(*arguments: Any, **named: Any) -> None:
        begin()
        try:
            sync(*arguments, **named)
        finally:
            end()

    return sync_multi
