"""Marks of sharding within functions of torch.compile, and the gradient of what is marked."""

import ast
import ctypes
import functools
from array import array
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import _XLAC
import torch
from torch import Tensor

from . import _castoff

__all__ = ["install"]

_OPERATOR = "dynamo_mark_sharding"

_libraries: list[Any] = []


def _marked(x: Tensor, device_ids: list[int], mesh_shape: list[int], axis_names: str, partition_spec: str) -> Tensor:
    """``xla::dynamo_mark_sharding``: the tensor itself, whose graph has the mark, in place of a wrapper of Python's."""
    from .distributed import spmd

    mesh = spmd.Mesh(device_ids, mesh_shape, ast.literal_eval(axis_names))
    spmd.mark_sharding(x, mesh, ast.literal_eval(partition_spec))
    return x


def _gradient(_: Any, grad: Tensor) -> tuple:
    return grad, None, None, None, None


def _register() -> None:
    # Not by torch.library, which refuses a second kernel of Python's. The path says whose it is.
    kernels = torch._C._dispatch_library(
        "IMPL", "xla", "", "torch_xla/compiled-sharding/files/torch_xla/_compiled_sharding.py", 1
    )
    with _castoff.quiet():  # another kernel is in its place
        kernels.impl(_OPERATOR, "XLA", _marked)
    autograd = torch.library.Library("xla", "IMPL")
    torch.library.register_autograd(f"xla::{_OPERATOR}", _gradient, lib=autograd)
    _libraries.extend((kernels, autograd))


def _keeping_names(taken: Callable) -> Callable:
    """Torch_xla makes tensors of what a graph takes, and finds a compiled function's arguments by their numbers."""
    from . import runtime

    name = _castoff.library().castoff_compiled_sharding_name
    name.restype, name.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    @functools.wraps(taken)
    def get_tensors_xla_device_data_node(tensors: list[Tensor]) -> tuple[list[int], list[Tensor]]:
        numbers, values = taken(tensors)
        if runtime.is_spmd():
            impls, words = array("Q", map(attrgetter("_cdata"), values)), array("q", numbers)
            name(impls.buffer_info()[0], words.buffer_info()[0], len(impls))
        return numbers, values

    return get_tensors_xla_device_data_node


def install() -> None:
    """Register the operator, and keep dynamo from tracing ``mark_sharding``. Called once, by ``_castoff``."""
    from .distributed import spmd
    from .distributed.spmd import xla_sharding

    _register()
    _XLAC._get_tensors_xla_device_data_node = _keeping_names(_XLAC._get_tensors_xla_device_data_node)
    spmd.mark_sharding = xla_sharding.mark_sharding = _castoff.untraced(xla_sharding.mark_sharding)
