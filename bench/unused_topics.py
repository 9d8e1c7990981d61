"""The cost of the patched wheels for a training step that uses no topic.

Runs training_step.py in an environment with stock wheels and in one with patched wheels, compares
the text of IR and HLO on CPU-XLA, and under callgrind the instructions of a CPU backward, of an
assignment to .grad and of Function.apply. Exit status 1 if the texts differ or a count is above
--limit times stock's. Wheels of a pin without torch_xla have no texts.

Needs valgrind.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer
from callgrind import count_parts
from rich.console import Console
from rich.table import Table
from side_by_side import run, run_all

# Where addresses collide in hash tables depends on the seed: some 0.2 % of a count, which the mean of three lessens.
SEEDS = ("0", "1", "2")
PROGRAM = Path(__file__).with_name("training_step.py")


def first_difference(stock: dict[str, str], patched: dict[str, str]) -> str | None:
    for name in stock:
        if stock[name] != patched[name]:
            lines = difflib.unified_diff(
                stock[name].splitlines(), patched[name].splitlines(), "stock", "patched", lineterm="", n=1
            )
            return "\n".join([name, *list(lines)[:20]])
    return None


def count(python: Path, seed: str) -> dict[str, int]:
    return count_parts(python, PROGRAM, "instructions", PYTHONHASHSEED=seed)


def lowest_of_rounds(run: dict[str, int]) -> dict[str, int]:
    """Of each part: the count without collisions in Python's cache of methods, which add up to 1.3 % in some rounds.

    training_step.py names a count "part, round".
    """
    counts: dict[str, int] = {}
    for name, number in run.items():
        part = name.split(", ")[0]
        counts[part] = min(number, counts.get(part, number))
    return counts


def mean_of_seeds(runs: Sequence[dict[str, int]]) -> dict[str, int]:
    lowest = [lowest_of_rounds(run) for run in runs]
    return {part: round(mean(counts[part] for counts in lowest)) for part in lowest[0]}


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    limit: Annotated[float, typer.Option(help="The highest ratio of instructions allowed.")] = 1.006,
    torch_alone: Annotated[bool, typer.Option("--torch-alone", help="The wheels are those of torch alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """.venv/bin/python bench/unused_topics.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare a training step that uses no topic under stock and patched wheels.
    """
    difference, texts = None, 0
    if not torch_alone:
        stock_ir, patched_ir = run_all([(python, PROGRAM, "ir") for python in (stock, patched)], run)
        difference, texts = first_difference(stock_ir, patched_ir), len(stock_ir)
    runs = run_all([(python, seed) for python in (stock, patched) for seed in SEEDS], count)
    counts = mean_of_seeds(runs[: len(SEEDS)]), mean_of_seeds(runs[len(SEEDS) :])
    ratios = {part: counts[1][part] / counts[0][part] for part in counts[0]}
    if as_json:
        each = {part: {"stock": counts[0][part], "patched": counts[1][part]} for part in ratios}
        print(json.dumps({"instructions": each, "ratios": ratios, "same_ir": difference is None, "texts": texts}))
    else:
        table = Table("", "stock", "patched", "ratio", title="A training step that uses no topic")
        for part, ratio in ratios.items():
            table.add_row(f"instructions of {part}", *(f"{c[part]:,}" for c in counts), f"{ratio:.4f}")
        table.add_row(f"IR and HLO texts ({texts})", "", "same" if difference is None else "differ", "")
        Console().print(table)
    if difference is not None:
        print(difference, file=sys.stderr)
    if difference is not None or max(ratios.values()) > limit:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
