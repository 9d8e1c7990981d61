"""What the benchmarks that compare two costs print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Cost:
    """What something takes under stock and under patched wheels, or before and after."""

    what: str
    stock: float
    patched: float
    limit: float  # the highest ratio of the two allowed

    @property
    def ratio(self) -> float:
        return self.patched / self.stock


def show(
    title: str, costs: Sequence[Cost], columns: tuple[str, str] = ("stock", "patched"), form: str = ",.0f"
) -> bool:
    """Print the costs; return whether all are within their limits."""
    table = Table("", *columns, "ratio", "limit", title=title)
    for cost in costs:
        numbers = f"{cost.stock:{form}}", f"{cost.patched:{form}}", f"{cost.ratio:.5f}", f"{cost.limit:g}"
        table.add_row(cost.what, *numbers)
    Console().print(table)
    return all(cost.ratio <= cost.limit for cost in costs)
