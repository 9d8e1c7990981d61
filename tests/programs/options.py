"""What a program needs beside the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Options:
    """What the runner does for a program."""

    tolerance: float | None = None  # a relative tolerance for all of its results
    devices: int = 1  # virtual devices of the CPU, under SPMD
    late: bool = False  # the runtime does not start before the program does


def options(**chosen: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a program with its Options."""

    def mark(program: Callable[..., Any]) -> Callable[..., Any]:
        program.options = Options(**chosen)  # type: ignore[attr-defined]
        return program

    return mark
