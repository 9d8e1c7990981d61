"""Departures: operators that torch_xla hands to the CPU.

Each cuts the graph in two: the device computes what the operator takes, its operands travel to the host, and its
results back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from castoff.audit.casts import Frame, Record, Step, module_of, op_of

LEAVES_DEVICE = "leaves-device"
"""The value of ``--forbid``."""


@dataclass(frozen=True)
class Departure:
    """An operator that leaves the device at one place of a program."""

    operator: str  # such as aten::nonzero
    count: int  # how often in the step
    to_host: int  # the bytes that travel to the host in the step: the operands of the operations that it is part of
    to_device: int  # the bytes of their results
    phase: str  # of the step
    module: str  # the path of the module
    op: str  # the operation: the program's function of torch, or the autograd node
    place: Frame | None  # the innermost line of the program that is not torch's

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        return f"{self.operator} × {self.count}{where}: {self.to_host:,} bytes to the host, {self.to_device:,} back"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def departures_of(step: Step) -> list[Departure]:
    """Return the operators that left the device in a step, in the order of their first time, one for each place."""
    counts: Counter[tuple[Any, ...]] = Counter()
    to_host: Counter[tuple[Any, ...]] = Counter()
    to_device: Counter[tuple[Any, ...]] = Counter()
    for handed in step.handed:
        record = step.records[handed.operation]
        for operator, count in handed.operators.items():
            key = (operator, *_where(record, step.records))
            counts[key] += count
            to_host[key] += handed.to_host
            to_device[key] += handed.to_device
    return list(_departures(counts, to_host, to_device))


def _departures(counts: Counter[Any], to_host: Counter[Any], to_device: Counter[Any]) -> Iterator[Departure]:
    for key, count in counts.items():
        operator, *where = key
        yield Departure(operator, count, to_host[key], to_device[key], *where)


def _where(record: Record, records: Mapping[int, Record]) -> tuple[str, str, str, Frame | None]:
    origin = records.get(record.origin or 0)
    stack = record.stack or (origin.stack if origin else ())
    return record.phase, module_of(record, records), op_of(record), stack[0] if stack else None


def read_departure(data: Mapping[str, Any]) -> Departure:
    """Return the departure from its plain data."""
    return Departure(**{**data, "place": Frame(**data["place"]) if data["place"] else None})
