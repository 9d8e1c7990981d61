"""What graph-identity costs: instructions of tracing and of keys, and compilations.

Runs graph_keys.py in an environment with stock wheels and in one with patched wheels. Exit status 1 if the tracing
of a training step and its key take more than --limit times stock's instructions, if a node of a large graph costs
more than one of a smaller graph, or if 8 training steps of an audited model compile otherwise than on stock.

Needs valgrind and g++, and transformers in both environments.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from shared import callgrind
from shared.side_by_side import all_but, run

PROGRAM = Path(__file__).parent / "workers" / "graph_keys.py"
GROWTH = 1.2  # how much more a node of the largest graph may cost than one of the next


@dataclass(frozen=True)
class Measured:
    """What was found.

    Attributes:
        step: Instructions of tracing a step and its key, on stock wheels and with graph-identity alone.
        keys: For each number of nodes, instructions of a graph's key on both.
        compilations: For each model, how often 8 training steps compile on both.
    """

    step: tuple[int, int]
    keys: dict[int, tuple[int, int]]
    compilations: dict[str, tuple[int, int]]

    @property
    def ratio(self) -> float:
        return self.step[1] / self.step[0]

    def per_node(self, nodes: int) -> float:
        """What a node's identity costs."""
        stock, patched = self.keys[nodes]
        return (patched - stock) / nodes

    def problems(self, limit: float) -> list[str]:
        found = [] if self.ratio <= limit else [f"a step takes {self.ratio:.4f} of stock's instructions, over {limit}"]
        # The smallest graph's count is a tenth part noise: of the allocator, and of what torch does once.
        smaller, largest = sorted(self.keys)[-2:]
        if self.per_node(largest) > GROWTH * max(self.per_node(smaller), 1):
            found.append(f"a node of {largest:,} costs more than one of {smaller:,}")
        return found + [f"{name}: {s} compilations, now {p}" for name, (s, p) in self.compilations.items() if s != p]


def measure(stock: Path, patched: Path) -> Measured:
    alone = {"CASTOFF_DISABLE": all_but("graph-identity")}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:

        def both(function: Any, what: str) -> list[Any]:
            jobs = pool.submit(function, stock, PROGRAM, what), pool.submit(function, patched, PROGRAM, what, **alone)
            return [job.result() for job in jobs]

        theirs, ours = both(callgrind.count_parts, "instructions")
        counts = {part: (theirs[part], ours[part]) for part in theirs}
        theirs, ours = both(run, "compilations")
        return Measured(
            counts.pop("step"),
            {int(nodes): counts[nodes] for nodes in sorted(counts, key=int)},
            {name: (theirs[name], ours[name]) for name in theirs},
        )


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    limit: Annotated[float, typer.Option(help="The highest ratio of a step's instructions allowed.")] = 1.015,
) -> None:
    """.venv/bin/python bench/graph_identity.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare keys and compilations under stock and patched wheels.
    """
    measured = measure(stock, patched)
    problems = measured.problems(limit)
    table = Table("", "stock", "patched", "", title="What graph-identity costs")
    first, second = measured.step
    table.add_row("tracing of a step and its key", f"{first:,}", f"{second:,}", f"{measured.ratio:.4f}")
    for nodes, (first, second) in measured.keys.items():
        per_node = f"{measured.per_node(nodes):.0f} a node"
        table.add_row(f"the key of {nodes:,} nodes", f"{first:,}", f"{second:,}", per_node)
    for name, (first, second) in measured.compilations.items():
        table.add_row(f"compilations of 8 steps: {name}", str(first), str(second), "")
    Console().print(table)
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    typer.run(main)
