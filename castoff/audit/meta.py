"""Audits a step on the meta device: no memory, no kernels, any batch size; with torch only.

Tensors on the meta device have a shape and a dtype and no data, so a step costs the time of its Python.
The report has FLOPs by torch's own counter, the dtypes in each module, every cast, and the bytes of storage
that are alive at a time. Operations without a meta kernel are listed; their results are guessed from their
arguments.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from castoff.audit.casts import BACKWARD, FORWARD, Cast, Record, cast_of, module_of
from castoff.audit.dtypes import is_exact, is_float
from castoff.audit.graph import Conversion, exactness_of
from castoff.audit.operations import Operations, tensors
from castoff.audit.report import totals_of, versions

PARAMETER = "parameter"

FORMAT = "castoff meta audit 1"

_NAMES = {
    torch.bool: "pred",
    torch.uint8: "u8",
    torch.int8: "s8",
    torch.int16: "s16",
    torch.int32: "s32",
    torch.int64: "s64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "convolution", "convolution_backward"})


def audit_meta(load: Callable[[], Callable[[], object]]) -> dict[str, Any]:
    """Run a step on the meta device.

    Args:
        load: Returns the step; it is called with torch's default device set to meta, so that it can make the model.

    Returns:
        The report, as plain data: meta.schema.json describes it.

    Raises:
        Exception: Any exception of ``load`` or the step.
    """
    with torch.device("meta"):
        _load_torch()
        step = load()
        watch = _MetaWatch()
        start = time.perf_counter()
        with watch.operations.noted():
            kept = step()
        seconds = time.perf_counter() - start
        del kept
    return watch.report(seconds)


def _load_torch() -> None:
    """Make torch import what it imports at its first operations, so that this is not part of the time."""
    with _MetaWatch().operations.noted():
        x = torch.empty(2, 3, 4, 4, requires_grad=True)
        y = torch.nn.functional.conv2d(x, torch.empty(4, 3, 1, 1)).flatten(2)
        y = torch.nn.functional.gelu(torch.nn.functional.layer_norm(y, (16,))).bfloat16()
        torch.nn.functional.cross_entropy(y.flatten(1).float(), torch.zeros(2, dtype=torch.int64)).backward()


class _MetaWatch:
    """The facts about a step on the meta device so far."""

    def __init__(self) -> None:
        self.operations = Operations(self._run)
        self.memory = Memory()
        self._results = _Results()
        self._flops: dict[int, int] = {}
        self._flow: dict[int, tuple[str, str]] = {}
        self._guessed: Counter[tuple[str, str, str]] = Counter()
        self._conversions: list[Conversion] = []
        self._made: dict[int, tuple[str, str]] = {}

    def report(self, seconds: float) -> dict[str, Any]:
        """Return the report, as plain data."""
        records = self.operations.records()
        casts = [
            _without_topics_of_xla(cast_of(number, 0, None, conversion, records))
            for number, conversion in enumerate(self._conversions, start=1)
        ]
        phases = dict.fromkeys((FORWARD, BACKWARD), 0)
        modules: Counter[str] = Counter()
        for number, flops in self._flops.items():
            phase = records[number].phase
            phases[phase] = phases.get(phase, 0) + flops
            modules[module_of(records[number], records)] += flops
        flow = Counter(
            (module_of(records[number], records), records[number].phase, *dtypes)
            for number, dtypes in self._flow.items()
        )
        return {
            "format": FORMAT,
            "versions": versions(),
            "seconds": seconds,
            "operations": len(records),
            "flops": {"total": sum(phases.values()), **phases},
            "flops_by_module": dict(modules.most_common()),
            "memory": self.memory.as_dict(),
            "dtype_flow": [
                {"module": module, "phase": phase, "from": source, "to": target, "operations": count}
                for (module, phase, source, target), count in flow.items()
            ],
            "totals": totals_of(casts),
            "casts": [cast.as_dict() for cast in casts],
            "without_kernel": [
                {"op": op, "place": place, "why": why, "count": count}
                for (op, place, why), count in self._guessed.items()
            ],
        }

    def _run(self, record: Record, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tensors([*args, *kwargs.values()])
        self.memory.given(given, record.phase)
        try:
            result = self._results.of(func, args, kwargs, given)
        except (NotImplementedError, RuntimeError) as error:
            if not (_has_no_kernel(error) and isinstance(func, torch._ops.OpOverload)):
                raise
            self._guessed[record.op, str(record.stack[0]) if record.stack else "", _reason(error)] += 1
            result = _guess(func, args, kwargs, given)
        made = tensors([result])
        self.memory.made(made, record.phase)
        self._count(record, func, args, kwargs, result)
        self._note_dtypes(record, func, given, made)
        return result

    def _count(self, record: Record, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        formula = flop_registry.get(getattr(func, "overloadpacket", func))
        if formula is not None:
            self._flops[record.number] = formula(*args, **kwargs, out_val=result)

    def _note_dtypes(self, record: Record, func: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if not given or not made:
            return
        name = record.op.rpartition(".")[2]
        target = _name(made[0])
        sources = dict.fromkeys(map(_name, given))
        floats = [dtype for dtype in sources if is_float(dtype)]
        if is_float(target) or floats:
            self._flow[record.number] = ("+".join(floats) or "integers", target)
        key = made[0].untyped_storage()._cdata
        if name in ("_to_copy", "copy_", "copy"):
            source = given[-1] if name != "_to_copy" else given[0]
            if _name(source) != target:
                self._convert(record, source, target)
                self._made[key] = ("cast", _name(source))
                return
        elif torch.Tag.pointwise in getattr(func, "tags", ()) and is_float(target):
            for tensor in given:
                if tensor.dim() and is_float(_name(tensor)) and _name(tensor) != target:
                    self._convert(record, tensor, target)
        if all(tensor.untyped_storage()._cdata != key for tensor in given):
            self._made[key] = ("product" if name in _PRODUCTS else "", "")

    def _convert(self, record: Record, tensor: torch.Tensor, target: str) -> None:
        source = _name(tensor)
        kind, before = self._made.get(tensor.untyped_storage()._cdata, ("", ""))
        self._conversions.append(
            Conversion(
                node=None,
                record=record.number,
                hlo="",
                origin="",
                source=source,
                target=target,
                shape=tuple(tensor.shape),
                exactness=exactness_of(before if kind == "cast" else None, source, target),
                of_product=kind == "product" and is_exact(source, target),
                product=None,
                of_view=True,
                of_input=tensor.is_leaf,
                into_product=False,
            )
        )


class _Results:
    """Runs operations, and makes the results of one that ran before on like arguments without its meta kernel.

    Many meta kernels are Python, and take most of a step's time; a model's layers repeat their operations. Only
    results in storages of their own are made again: what aliases an argument, as views and ``_unsafe_view`` do, is run
    each time. So is what changes an argument, draws random numbers or has a result whose shape depends on data.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, _Made] = {}
        self._repeatable: dict[Any, bool] = {}

    def of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
        """Return the result of an operation.

        Raises:
            Exception: Any exception of the operation.
        """
        repeatable = self._repeatable.get(func)
        if repeatable is None:
            repeatable = self._repeatable[func] = _is_repeatable(func)
        if not repeatable:
            return func(*args, **kwargs)
        # Of integers the result's dtype may be the default one.
        try:
            key = (func, torch.get_default_dtype(), _like(args), _like(tuple(kwargs.items())))
            made = self._made.get(key)
        except TypeError:  # an argument whose equals are not known
            return func(*args, **kwargs)
        if made is not None:
            return made.again()
        result = func(*args, **kwargs)
        made = _Made.of(result, given)
        if made is not None:
            self._made[key] = made
        return result


@dataclass(frozen=True)
class _Made:
    """The results of an operation, to be made again: of each its sizes, strides and dtype, or None for None."""

    layouts: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype] | None, ...]
    kind: type | None  # of the sequence of results; None if it is one tensor

    @classmethod
    def of(cls, result: Any, given: list[torch.Tensor]) -> _Made | None:
        """Return the results of an operation on some tensors; None if they are not of storages of their own."""
        kind = type(result) if isinstance(result, (tuple, list)) else None
        storages = {tensor.untyped_storage()._cdata for tensor in given}
        layouts: list[tuple[torch.Size, tuple[int, ...], torch.dtype] | None] = []
        for value in result if kind in (tuple, list) else [result]:
            if value is None:
                layouts.append(None)
                continue
            if not _is_plain(value) or value.storage_offset() != 0:
                return None
            storage = value.untyped_storage()
            layout = (value.shape, value.stride(), value.dtype)
            if storage._cdata in storages or storage.nbytes() != _empty(*layout).untyped_storage().nbytes():
                return None
            storages.add(storage._cdata)
            layouts.append(layout)
        return cls(tuple(layouts), kind)

    def again(self) -> Any:
        """Return such results in new storages."""
        made = [None if layout is None else _empty(*layout) for layout in self.layouts]
        return made[0] if self.kind is None else self.kind(made)


def _empty(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _is_repeatable(func: Any) -> bool:
    """Tell whether an operation of like arguments has like results, and changes nothing."""
    varying = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    if not isinstance(func, torch._ops.OpOverload) or varying & set(func.tags) or func._schema.is_mutable:
        return False
    return all(value.alias_info is None for value in [*func._schema.arguments, *func._schema.returns])


def _like(value: Any) -> Hashable:
    """Return what a value has in common with those of which an operation makes like results.

    Raises:
        TypeError: It is not known what that is.
    """
    if isinstance(value, torch.Tensor):
        if not _is_plain(value):
            raise TypeError(f"expected a plain tensor on the meta device, found {type(value)}")
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return type(value), *map(_like, value)
    # The types too: 1, 1.0 and True are equal, and promote differently.
    return type(value), value


def _is_plain(value: Any) -> bool:
    """Tell whether a value is a tensor on the meta device that has no more to it than sizes, strides and a dtype."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.is_meta
        and value.layout == torch.strided
        and not (value.is_conj() or value.is_neg())
    )


class Memory:
    """Counts the bytes of the storages that a step makes while they are alive."""

    def __init__(self) -> None:
        self._alive: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._given: dict[int, Any] = {}
        self._leaves: dict[int, torch.Tensor] = {}
        self._bytes: Counter[str] = Counter()
        self._peaks: Counter[str] = Counter()

    def given(self, values: list[torch.Tensor], phase: str) -> None:
        """Record the inputs of an operation in a phase of the step; what the step did not make is not counted."""
        for tensor in values:
            key = tensor.untyped_storage()._cdata
            if key not in self._alive and key not in self._given:
                self._given[key] = tensor.untyped_storage()
            # In a backward, a saved tensor looks like a leaf while it is unpacked.
            leaf = tensor.requires_grad and tensor.is_leaf and phase != BACKWARD
            if leaf and id(tensor) not in self._leaves:
                self._leaves[id(tensor)] = tensor
                self._is_parameter(key)

    def made(self, values: list[torch.Tensor], phase: str) -> None:
        """Record the results of an operation in a phase of the step."""
        for tensor in values:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._alive or key in self._given:
                continue
            size = storage.nbytes()
            self._alive[key] = (weakref.ref(storage, partial(self._gone, key)), size, phase)
            self._bytes[phase] += size
            self._peaks[phase] = max(self._peaks[phase], self._bytes[phase])
            self._peaks["all"] = max(self._peaks["all"], sum(self._bytes.values()))

    def as_dict(self) -> dict[str, int]:
        """Return the bytes, by kind."""
        gradients = [leaf.grad for leaf in self._leaves.values() if leaf.grad is not None]
        return {
            "parameter_bytes": sum(_bytes(leaf) for leaf in self._leaves.values()),
            "gradient_bytes": sum(map(_bytes, gradients)),
            "peak_activation_bytes": self._peaks[FORWARD],
            "peak_gradient_bytes": self._peaks[BACKWARD],
            "peak_bytes": self._peaks["all"],
        }

    def _is_parameter(self, key: int) -> None:
        """Do not count a parameter that the step itself made as an activation."""
        if key in self._alive:
            reference, size, phase = self._alive[key]
            self._alive[key] = (reference, size, PARAMETER)
            self._bytes[phase] -= size

    def _gone(self, key: int, _reference: object) -> None:
        _, size, phase = self._alive.pop(key)
        if phase != PARAMETER:
            self._bytes[phase] -= size


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _name(tensor: torch.Tensor) -> str:
    return _NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.").replace("float8_", "f8").replace(
        "_", ""
    )


def _without_topics_of_xla(cast: Cast) -> Cast:
    """Remove the topics of torch_xla from a cast: their effect is only known from XLA's graph."""
    return cast if cast.topic in (None, "grad-dtype") else replace(cast, topic=None)


def _has_no_kernel(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, NotImplementedError) or "meta tensor" in text or "Meta tensor" in text


def _reason(error: Exception) -> str:
    text = str(error)
    reads = "item()" in text or "copy out of meta" in text
    return "its result is a value on the host" if reads else "no meta kernel"


def _guess(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
    """Return the possible result of an operation: the largest one if its size depends on data."""
    name = str(func.overloadpacket).rpartition(".")[2]
    if name == "_local_scalar_dense":
        return torch.ones((), dtype=given[0].dtype, device="cpu").item()
    if name == "nonzero":
        return given[0].new_empty((given[0].numel(), given[0].dim()), dtype=torch.int64)
    if name == "index":
        return _selected(args[0], args[1])
    likes = [torch.empty_like(given[0], dtype=kwargs.get("dtype"), device="meta") for _ in func._schema.returns]
    return likes[0] if len(likes) == 1 else tuple(likes)


def _selected(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """Return ``tensor[mask]`` as if the mask selected everything."""
    mask = next(index for index in indices if index is not None)
    return tensor.new_empty((mask.numel(), *tensor.shape[mask.dim() :]))
