"""Graphs of the table's functions, each made once for the shapes, dtypes and numbers of its arguments.

A call of a function that is made of a hundred operators is one IR node of XLA's graph in place of theirs, and costs the
host as little. XLA puts the operators in the node's place before it does anything else.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
import torch_xla
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch_xla import _castoff

from .common import tensors_in

_FUNCTIONALIZE, _AUTOCAST = torch._C.DispatchKey.Functionalize, torch._C._parse_dispatch_key("AutocastXLA")


@contextlib.contextmanager
def _as_outside_of_kernels() -> Iterator[None]:
    """Let torch follow views of tensors; within a kernel they would be taken apart by strides, which XLA does not have.

    Autocast, which the operator itself has gone through, does not act on what the function calls.
    """
    exclude, is_excluded = (
        torch._C._dispatch_tls_set_dispatch_key_excluded,
        torch._C._dispatch_tls_is_dispatch_key_excluded,
    )
    functionalize, autocast = is_excluded(_FUNCTIONALIZE), is_excluded(_AUTOCAST)
    exclude(_FUNCTIONALIZE, False)
    exclude(_AUTOCAST, True)
    try:
        yield
    finally:
        exclude(_FUNCTIONALIZE, functionalize)
        exclude(_AUTOCAST, autocast)


def functionalized(function: Callable, *arguments: Any) -> Any:
    given = tensors_in(arguments)
    with _as_outside_of_kernels():
        arguments = tree_map(lambda v: _wrapped(v) if isinstance(v, Tensor) else v, arguments)
        results = function(*arguments)
        results = tree_map(lambda r: _unwrapped(r) if isinstance(r, Tensor) else r, results)
    return tree_map(lambda r: r.clone() if any(r is v for v in given) else r, results)


def _wrapped(x: Tensor) -> Tensor:
    is_plain = x.device.type == "xla" and not torch._is_functional_tensor(x)
    return torch._to_functional_tensor(x) if is_plain else x


def _unwrapped(x: Tensor) -> Tensor:
    if not torch._is_functional_tensor(x):
        return x
    torch._sync(x)
    return torch._from_functional_tensor(x)


_MOST = 4096


def _as(result: Tensor, dtype: torch.dtype) -> Tensor:
    """torch_xla takes the u64 that a computation returns for an int64."""
    if result.dtype != dtype:
        return result.to(dtype)
    if dtype in (torch.int32, torch.int64) and result.dim() < 2:
        # torch_xla asks the node of an index for its rank, and a computation's is a tuple: the process ends.
        return torch.ops.aten.view_copy(result, result.shape)
    return result


def _is_number(operand: Any) -> bool:
    """Whether an operand of a graph is a number of the function's own, which torch_xla takes for data."""
    return isinstance(operand, Tensor) and operand.dim() == 0


def _with_constants(name: str, computation: Any, operands: list[Tensor], are_numbers: list[bool]) -> Any:
    """The computation with constants for the operands that are numbers: less is passed to it, and XLA folds more."""
    from torch_xla.core.xla_builder import _PT_XLA_TYPE_MAP, Op, create_computation, mkshape

    kinds = list(zip(operands, are_numbers, strict=True))
    values = iter(torch_xla._XLAC._xla_get_cpu_tensors([t for t, is_number in kinds if is_number]))

    def called(*given: Any) -> Any:
        left, builder = iter(given), given[0].builder()
        all_of_them = [Op.constant(builder, next(values)) if is_number else next(left) for is_number in are_numbers]
        return Op.call(computation, all_of_them)

    shapes = [mkshape(_PT_XLA_TYPE_MAP[t.dtype], tuple(t.shape)) for t, is_number in kinds if not is_number]
    return create_computation(name, called, shapes)


class _Graph:
    """The graph of ``function(*arguments)``: of tensors of these shapes and dtypes, and of all else as it is.

    ``computation`` is None where there is no graph: of a function that declines, reads no tensor, or returns something
    but tensors.
    """

    def __init__(self, name: str, function: Callable, arguments: tuple) -> None:
        from torch_xla.core import xla_builder

        self._node, self.computation = f"xla::{name}", None
        placeholders: list[Tensor] = []

        def placeholder(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            placeholders.append(xla_builder.create_placeholder_tensor(value.shape, value.dtype))
            return placeholders[-1]

        results = function(*tree_map(placeholder, arguments))
        self.declines = results is NotImplemented
        leaves, self._structure = tree_flatten(results)
        found = [t for t in leaves if t is not None]  # a gradient that nobody wants is None
        if self.declines or not found or not all(isinstance(t, Tensor) for t in found):
            return
        self._dtypes = [None if t is None else t.dtype for t in leaves]
        context = torch_xla._XLAC.lowering.LoweringContext(name)
        context.set_name_string(name)
        context.build(found)
        captured = context.device_parameter_id_tensor_mapping()
        if not captured:
            return  # what is the same for all tensors has no operands
        # In the order of the parameters: the number of an argument, or a tensor that the function reads besides.
        operands: list = [captured.get(i) for i in range(len(captured))]
        for number, tensor in enumerate(placeholders):
            parameter = context.tensor_parameter_id(tensor)
            if parameter != -1:
                operands[parameter] = number
        self._operands = [o for o in operands if not _is_number(o)]
        if self._operands:
            made = xla_builder.computation_from_module_proto(name, context.hlo())
            tensors = [placeholders[o] if isinstance(o, int) else o for o in operands]
            self.computation = _with_constants(name, made, tensors, [_is_number(o) for o in operands])

    def __call__(self, tensors: list[Tensor]) -> Any:
        operands = [tensors[o] if isinstance(o, int) else o for o in self._operands]
        found = iter(torch_xla._XLAC._xla_user_computation(self._node, operands, self.computation))
        results = [None if dtype is None else _as(next(found), dtype) for dtype in self._dtypes]
        return tree_unflatten(results, self._structure)


_graphs: dict = {}


def _kind(value: Any, tensors: list[Tensor]) -> Any:
    """What a graph depends on of an argument, whose tensors are added to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.dtype, value.shape
    if isinstance(value, (list, tuple)):
        return tuple([_kind(v, tensors) for v in value])
    # -0.0 is equal to 0.0, and NaN to nothing.
    return type(value), repr(value) if type(value) is float else value


def _forget(precision: str) -> None:
    """Products of matrices in the graphs have the precision that was set."""
    _graphs.clear()


@functools.lru_cache
def _are_made() -> bool:
    """Whether this release can make them."""
    from torch_xla.core import xla_builder

    _castoff.follow_matmul_precision(_forget)
    return hasattr(xla_builder, "create_placeholder_tensor")


def by_its_graph(name: str, function: Callable, arguments: tuple) -> Any:
    """``function(*arguments)`` of tensors on XLA, by a graph of it."""
    tensors: list[Tensor] = []
    kinds = tuple([_kind(a, tensors) for a in arguments])
    if not _are_made() or not tensors or tensors[0].device.index != 0 or not all(t.numel() for t in tensors):
        return functionalized(function, *arguments)
    key = (name, kinds, torch.get_default_dtype())
    graph: Optional[_Graph] = _graphs.get(key)
    if graph is None:
        if len(_graphs) >= _MOST:
            _graphs.clear()
        graph = _graphs[key] = _Graph(name, functools.partial(functionalized, function), arguments)
    if graph.declines:
        return NotImplemented
    return functionalized(function, *arguments) if graph.computation is None else graph(tensors)
