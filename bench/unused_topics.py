"""The cost of the patched wheels for a training step that uses no topic.

Runs training_step.py in an environment with stock wheels and in one with patched wheels, compares
the text of IR and HLO on CPU-XLA, and the instruction count of a CPU backward under callgrind.
Exit status 1 if the texts differ or the count is above --limit times stock's.

Needs valgrind, and setuptools in both environments (torch.utils.benchmark asks for it).
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from side_by_side import need_valgrind, run, run_all

PROGRAM = Path(__file__).with_name("training_step.py")


def first_difference(stock: dict[str, str], patched: dict[str, str]) -> str | None:
    for name in stock:
        if stock[name] != patched[name]:
            lines = difflib.unified_diff(
                stock[name].splitlines(), patched[name].splitlines(), "stock", "patched", lineterm="", n=1
            )
            return "\n".join([name, *list(lines)[:20]])
    return None


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    limit: Annotated[float, typer.Option(help="The highest ratio of instructions allowed.")] = 1.01,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """.venv/bin/python bench/unused_topics.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare a training step that uses no topic under stock and patched wheels.
    """
    need_valgrind()
    jobs = [(python, PROGRAM, what) for what in ("instructions", "ir") for python in (stock, patched)]
    stock_count, patched_count, stock_ir, patched_ir = run_all(jobs, run)
    difference = first_difference(stock_ir, patched_ir)
    counts = stock_count["instructions"], patched_count["instructions"]
    ratio = counts[1] / counts[0]
    if as_json:
        print(json.dumps({"stock": counts[0], "patched": counts[1], "ratio": ratio, "same_ir": difference is None}))
    else:
        table = Table("", "stock", "patched", "ratio", title="A training step that uses no topic")
        table.add_row("instructions of a CPU backward", *(f"{c:,.0f}" for c in counts), f"{ratio:.4f}")
        table.add_row(f"IR and HLO texts ({len(stock_ir)})", "", "same" if difference is None else "differ", "")
        Console().print(table)
    if difference is not None:
        print(difference, file=sys.stderr)
    if difference is not None or ratio > limit:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
