"""The cost of the patched wheels for a training step that uses no topic.

Runs training_step.py in an environment with stock wheels and in one with patched wheels, compares
the text of IR and HLO on CPU-XLA, and under callgrind the instructions of a CPU backward, of an
assignment to .grad and of Function.apply. What counts is what runs in the libraries of torch and castoff,
which repeats to the instruction in one environment, and to 0.01 % where addresses are others: Python's caches
of methods and the C library's allocator depend on these by some 1 %. Exit status 1 if the
texts differ, or a count is above --limit times stock's, or all instructions are above --limit-of-all
times. Wheels of a pin without torch_xla have no texts.

Needs valgrind.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer
from shared.callgrind import count_objects
from shared.costs import Cost, show
from shared.side_by_side import run, run_all

PROGRAM = Path(__file__).parent / "workers" / "training_step.py"


def first_difference(stock: dict[str, str], patched: dict[str, str]) -> str | None:
    for name in stock:
        if stock[name] != patched[name]:
            lines = difflib.unified_diff(
                stock[name].splitlines(), patched[name].splitlines(), "stock", "patched", lineterm="", n=1
            )
            return "\n".join([name, *list(lines)[:20]])
    return None


def count(python: Path) -> dict[str, tuple[int, int]]:
    """The instructions of each part: within the libraries of torch and castoff, and all."""
    parts = count_objects(python, PROGRAM, "instructions")
    return {
        part: (sum(number for path, number in objects.items() if is_ours(path)), sum(objects.values()))
        for part, objects in parts.items()
    }


def is_ours(path: str) -> bool:
    return Path(path).name.startswith(("libtorch", "libc10", "libcastoff"))


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    limit: Annotated[float, typer.Option(help="The highest ratio allowed in torch's libraries.")] = 1.002,
    limit_of_all: Annotated[float, typer.Option(help="The highest ratio allowed of all instructions.")] = 1.02,
    torch_alone: Annotated[bool, typer.Option("--torch-alone", help="The wheels are those of torch alone.")] = False,
) -> None:
    """.venv/bin/python bench/unused_topics.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare a training step that uses no topic under stock and patched wheels.
    """
    difference, texts = None, 0
    if not torch_alone:
        stock_ir, patched_ir = run_all([(python, PROGRAM, "ir") for python in (stock, patched)], run)
        difference, texts = first_difference(stock_ir, patched_ir), len(stock_ir)
    counts = run_all([(stock,), (patched,)], count)
    ways = (("in torch's libraries", limit), ("in all", limit_of_all))
    costs = [
        Cost(f"{part}, {way}", *(of[part][number] for of in counts), most)
        for part in counts[0]
        for number, (way, most) in enumerate(ways)
    ]
    well = show("Instructions of a training step that uses no topic", costs)
    print(f"{texts} texts of IR and HLO {'are the same' if difference is None else 'differ'}")
    if difference is not None:
        print(difference, file=sys.stderr)
    if difference is not None or not well:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
