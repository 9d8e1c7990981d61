"""Operators that torch_xla has no lowering for, computed on the device instead of on the CPU.

``_lowerings/table.py`` says which function computes which operator. The functions are those of the modules beside it,
imported with the first call of one of them.
"""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Optional

import torch
from torch.utils._pytree import tree_map

from . import _castoff, _departures, _linalg_errors
from ._lowerings.common import tensors_in
from ._lowerings.graphs import by_its_graph, functionalized
from ._lowerings.table import COMPOSITE, DIFFERENTIABLE, DIRECT, LOWERED_SINCE, PROMOTED, REFUSED, TABLE

__all__ = ["install"]

_HALF = (torch.bfloat16, torch.float16)

_DTYPES = {
    "bool": (torch.bool,),
    "complex": (torch.complex64, torch.complex128),
    "floating": (torch.float32, torch.float64, *_HALF),
    "integral": (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}

_library: Any = None


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _HALF


def _narrow_dtype(tensors: list[torch.Tensor], arguments: tuple) -> Optional[torch.dtype]:
    """The dtype of a result that was computed in float32: bfloat16 or float16, or None for what it is."""
    floating = [v for v in tensors if v.is_floating_point()]
    dtypes = {v.dtype for v in floating if v.dim()} or {v.dtype for v in floating}
    asked_for = any(isinstance(v, torch.dtype) for v in arguments)
    return dtypes.pop() if len(dtypes) == 1 and not asked_for else None


def in_float32(function: Callable, *arguments: Any) -> Any:
    """``function(*arguments)``, with bfloat16 and float16 tensors widened, and the results rounded once."""
    tensors = tensors_in(arguments)
    if not any(t.dtype in _HALF for t in tensors):
        return function(*arguments)
    narrow = _narrow_dtype(tensors, arguments)
    results = function(*tree_map(lambda v: v.float() if _is_half(v) else v, arguments))
    if narrow not in _HALF:
        return results
    return tree_map(lambda r: r.to(narrow) if isinstance(r, torch.Tensor) and r.dtype == torch.float32 else r, results)


def _on_one_device(arguments: tuple) -> Any:
    """The arguments, with numbers of the CPU on the device, as torch takes them; None with other tensors of the CPU."""
    given = tensors_in(arguments)
    others = [v for v in given if v.device.type == "cpu"]
    if not others:
        return arguments
    device = next((v.device for v in given if v.device.type == "xla"), None)
    if device is None or any(v.dim() for v in others):
        return None
    return tree_map(lambda v: v.to(device) if any(v is o for o in others) else v, arguments)


def _tensor_of(number: Any, others: list) -> torch.Tensor:
    """A Python number that stands for a tensor, as the dispatcher hands it to Python, in the dtype of the result."""
    first = next(v for v in others if isinstance(v, torch.Tensor))
    dtype = torch.result_type(first, number)
    if dtype == torch.uint8 and number < 0:
        dtype = torch.int16  # copysign takes its sign
    return torch.full((), number, dtype=dtype, device=first.device)


def _keep(name: str, key: str) -> None:
    """Let ``castoff_<key>::<name>`` be what the operator's present kernel computes."""
    _castoff.call("on-device", "keep", *(part.encode() for part in (*_parts(name), key)))


def _parts(name: str) -> tuple[str, str]:
    """An operator's name and that of its overload."""
    operator, _, overload = name.partition(".")
    return operator, overload


def _kept(name: str, key: str) -> Callable:
    operator, overload = _parts(name)
    return getattr(getattr(getattr(torch.ops, f"castoff_{key}"), operator), overload or "default")


class _Operator:
    """An operator of the table: its function, and the kernel that it had."""

    def __init__(self, name: str, place: str, key: str) -> None:
        self._name, self._place, self._key = name, place, key
        self._is_below_autograd, self._node = key == "XLA", name.replace(".", "_")
        _keep(name, key)

    @functools.cached_property
    def _module(self) -> ModuleType:
        return importlib.import_module(f"{__package__}._lowerings.{self._place.split('.')[0]}")

    @functools.cached_property
    def _function(self) -> Callable:
        return getattr(self._module, self._place.split(".")[1])

    @functools.cached_property
    def _schema_arguments(self) -> list:
        operator, overload = _parts(self._name)
        return torch._C._get_schema(f"aten::{operator}", overload).arguments

    @functools.cached_property
    def _refused(self) -> frozenset[torch.dtype]:
        kinds = [kind for kind, names in REFUSED.items() if self._name in names.split()]
        return frozenset(dtype for kind in kinds for dtype in _DTYPES[kind])

    def _check_dtype(self, first: Any, *others: Any) -> None:
        dtype = getattr(first, "dtype", None)
        if dtype in self._refused and self._name in PROMOTED.split() and isinstance(others[0], torch.Tensor):
            dtype = torch.result_type(first, others[0])
        if dtype in self._refused:
            raise NotImplementedError(
                f"aten::{self._name}: not implemented for {first.dtype}, as on the CPU. Convert the tensor first."
            )

    @functools.cached_property
    def _tensors(self) -> list[int]:
        """The places of the arguments that are tensors."""
        return [i for i, a in enumerate(self._schema_arguments) if str(a.type) == "Tensor"]

    def _without_numbers(self, arguments: tuple) -> tuple:
        """The arguments, with tensors where a call had numbers instead."""
        numbers = [i for i in self._tensors if isinstance(arguments[i], (bool, int, float, complex))]
        if not numbers:
            return arguments
        return tuple(_tensor_of(v, arguments) if i in numbers else v for i, v in enumerate(arguments))

    @functools.cached_property
    def _kept(self) -> Callable:
        return _kept(self._name, self._key)

    @functools.cached_property
    def _number_of_check_errors(self) -> int:
        return next((i for i, a in enumerate(self._schema_arguments) if a.name == "check_errors"), -1)

    def _is_traced(self, arguments: tuple) -> bool:
        """Whether a call has no graph that others can take, of these shapes, dtypes and numbers."""
        checks = self._number_of_check_errors
        return getattr(self._module, "EACH_TIME", False) or (checks >= 0 and arguments[checks])

    def _result(self, *arguments: Any) -> Any:
        prepare = getattr(self._function, "prepare", None)
        if prepare is not None:
            arguments = prepare(*arguments)
            if arguments is NotImplemented:
                return NotImplemented
        if self._is_traced(arguments):
            return functionalized(self._function, *arguments)
        return by_its_graph(self._node, self._function, arguments)

    def call(self, *arguments: Any, **named: Any) -> Any:
        """The function's result, or that of the kernel that was there if the function is not for this call."""
        rest = [named.get(a.name, a.default_value) for a in self._schema_arguments[len(arguments) :]]
        given = self._without_numbers((*arguments, *rest))
        self._check_dtype(*given)
        condition = getattr(self._function, "condition", None)
        result = self._answer(given) if condition is None or condition(*given) else NotImplemented
        if result is NotImplemented:
            result = self._kept(*given[: len(arguments)], **named)
        if self._number_of_check_errors >= 0:
            _linalg_errors.remember(tensors_in((given, result)))
        return result

    def _answer(self, arguments: tuple) -> Any:
        if not self._is_below_autograd:
            return self._function(*arguments)
        held = _on_one_device(arguments)
        if held is None:
            return NotImplemented
        if getattr(self._function, "keeps_dtypes", False):
            return self._result(*held)
        return in_float32(self._result, *held)


def _kernel(name: str, place: str, key: str) -> Callable:
    operator = _Operator(name, place, key)

    def kernel(*arguments: Any, **named: Any) -> Any:
        return operator.call(*arguments, **named)

    return _castoff.untraced(kernel)


def _direct_kernel(name: str, place: str) -> Callable:
    """The function of DIRECT, of which no graph is made: it is one node itself."""
    module, function = place.split(".")
    _keep(name, "XLA")
    kept = _kept(name, "XLA")

    @functools.lru_cache
    def found() -> Callable:
        return getattr(importlib.import_module(f"{__package__}._lowerings.{module}"), function)

    return _castoff.untraced(lambda *arguments: found()(kept, *arguments))


def _not_lowered() -> dict[str, str]:
    """The operators of LOWERED_SINCE that this release hands to the CPU."""
    dumps = {name: torch._C._dispatch_dump(f"aten::{name}") for name in LOWERED_SINCE}
    return {name: LOWERED_SINCE[name] for name, dump in dumps.items() if dump and "RegisterXLA.cpp" not in dump}


def install() -> None:
    """Register the table's operators for XLA. Called once, by ``_castoff``."""
    global _library
    _castoff.install_kernels("on-device")
    # Not by torch.library, which would refuse a user's kernels for the same operators. The path says whose they are.
    _library = torch._C._dispatch_library("IMPL", "aten", "", "torch_xla/on-device/files/torch_xla/_on_device.py", 1)
    with _castoff.quiet():
        for key, table in (
            ("XLA", {**_not_lowered(), **TABLE}),
            ("AutogradXLA", {**DIFFERENTIABLE, **COMPOSITE}),
            ("Functionalize", COMPOSITE),
        ):
            for name, place in table.items():
                _library.impl(name, key, _kernel(name, place, key))
        for name, place in DIRECT.items():
            _library.impl(name, "XLA", _direct_kernel(name, place))
        _castoff.call("on-device", "choose")
        _keep("_linalg_check_errors", "XLA")
        kept = _linalg_errors.at_the_call(_kept("_linalg_check_errors", "XLA"))
        check = _linalg_errors.deferred if _linalg_errors.are_deferred() else kept
        _library.impl("_linalg_check_errors", "XLA", _castoff.untraced(check))
        if _departures.are_told():
            _keep("_to_cpu", "XLA")
            copied = _kept("_to_cpu", "XLA")
            _library.impl("_to_cpu", "XLA", _castoff.untraced(_departures.told(copied)))
