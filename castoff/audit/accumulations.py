"""Narrow accumulations: sums and products of many elements whose result XLA is asked for in bfloat16 or float16.

What the HLO asks for counts. A compiler may accumulate wider than that, as TPUs do within one dot, and then rounds
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from castoff.audit.casts import UNKNOWN, Frame, Record, Step, module_of, op_of
from castoff.audit.graph import record_of
from castoff.formats.xla_text import Instruction, Module, parse_hlo

NARROW_ACCUMULATION = "narrow-accumulation"
"""The value of ``--forbid``."""

_NARROW = ("bf16", "f16")
_SUMS = ("add", "multiply")
_COLLECTIVES = ("all-reduce", "reduce-scatter")
_SUMMED = ("reduce", "reduce-window", "scatter", "select-and-scatter", *_COLLECTIVES)


@dataclass(frozen=True)
class Accumulation:
    """A sum or product of many elements with a narrow result."""

    graph: int  # the number of its graph, from 0
    hlo: str  # its name in the HLO; of a collective of a sharded graph, in that of one device
    kind: str  # its opcode, such as "dot"
    dtype: str  # the dtype of the result, by XLA's name
    length: int  # how many elements or products are summed for one of the result; of a scatter, at most
    shape: tuple[int, ...]  # the sizes of the result
    operation: int  # the number of the operation of the step that it comes from; 0 if that is not known
    phase: str  # of the step
    module: str  # the path of the module
    op: str  # the operation: the program's function of torch, or the autograd node
    place: Frame | None  # the innermost line of the program that is not torch's

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "shape": list(self.shape)}


def accumulations_of(step: Step) -> list[Accumulation]:
    """Return every narrow accumulation of a step, in the order of its graphs and their HLO."""
    found = []
    for number, graph in enumerate(step.graphs):
        if not graph.hlo:
            continue
        found += [_accumulation(number, *one, step.records) for one in _narrow(graph.hlo)]
        if graph.partitioned:  # its collectives are the partitioner's; the rest is the graph's own
            ones = [one for one in _narrow(graph.partitioned) if one[0].op in _COLLECTIVES]
            found += [_accumulation(number, *one, step.records) for one in ones]
    return found


def _narrow(hlo: str) -> Iterator[tuple[Instruction, int]]:
    """Return what accumulates in a narrow dtype, and how many elements or products."""
    module = parse_hlo(hlo)
    for inner in module.instructions():
        length = _length(inner, module) if inner.dtype in _NARROW else 0
        if length > 1:
            yield inner, length


def read_accumulation(data: Mapping[str, Any]) -> Accumulation:
    """Return the accumulation from its plain data."""
    place = Frame(**data["place"]) if data["place"] else None
    return Accumulation(**{**data, "place": place, "shape": tuple(data["shape"])})


def _accumulation(graph: int, inner: Instruction, length: int, records: Mapping[int, Record]) -> Accumulation:
    record = records.get(record_of(inner.op_name) or 0)
    origin = records.get(record.origin or 0) if record else None
    stack = record.stack if record and record.stack else origin.stack if origin else ()
    return Accumulation(
        graph=graph,
        hlo=inner.name,
        kind=inner.op,
        dtype=inner.dtype,
        length=length,
        shape=inner.sizes,
        operation=record.number if record else 0,
        phase=record.phase if record else UNKNOWN,
        module=module_of(record, records) if record else "",
        op=op_of(record),
        place=stack[0] if stack else None,
    )


def _length(inner: Instruction, module: Module) -> int:
    """Return how many elements an instruction sums for one of its result; 0 if it sums none."""
    return _product_length(inner, module) if inner.op in ("dot", "convolution") else _sum_length(inner, module)


def _product_length(inner: Instruction, module: Module) -> int:
    left, right = (module.named[name].sizes for name in inner.operands)
    if inner.op == "dot":
        return prod(left[at] for at in _numbers(inner, "lhs_contracting_dims"))
    # The kernel's dimensions are o, i and those of the window, each named once.
    kernel = _attribute(inner, r"dim_labels=\w+_(\w+)->")
    return prod(size for size, label in zip(right, kernel, strict=True) if label != "o")


def _sum_length(inner: Instruction, module: Module) -> int:
    if inner.op not in _SUMMED or not _adds(inner, module):
        return 0
    operands = [module.named[name].sizes for name in inner.operands]
    if inner.op == "reduce":
        return prod(operands[0][at] for at in _numbers(inner, "dimensions"))
    if inner.op == "scatter":  # all updates may go to one element
        window = _numbers(inner, "update_window_dims")
        return prod(size for at, size in enumerate(operands[-1]) if at not in window)
    if inner.op in ("reduce-window", "select-and-scatter"):
        return prod(int(size) for size in _attribute(inner, r"window=\{size=([\dx]+)").split("x"))
    return _devices(inner)


def _adds(inner: Instruction, module: Module) -> bool:
    """Tell whether the computation that an instruction applies adds or multiplies."""
    applied = _attribute(inner, r"\b(?:to_apply|scatter)=%?([\w.\-]+)")
    return any(step.root and step.op in _SUMS for step in module.computations.get(applied, ()))


def _attribute(inner: Instruction, pattern: str) -> str:
    match = re.search(pattern, inner.attributes)
    return match[1] if match else ""


def _numbers(inner: Instruction, name: str) -> list[int]:
    return [int(number) for number in _attribute(inner, rf"\b{name}=\{{([\d,]*)\}}").split(",") if number]


def _devices(inner: Instruction) -> int:
    """Return the number of devices of a collective's groups."""
    compact = re.match(r"\[\d+,(\d+)\]<=", inner.groups)
    if compact:
        return int(compact[1])
    first = re.match(r"\{\{([\d,]+)\}", inner.groups)
    return len(first[1].split(",")) if first else 0
