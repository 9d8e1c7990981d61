"""The accuracy and the cost of float32 gradients of bfloat16 weights.

Runs wide_gradients.py in an environment with stock wheels and in one with patched wheels: the relative
error of a weight's gradient after 64 micro-batches, and under callgrind the instructions of tracing a
matrix product and a training step of weights without a grad_dtype, and a step of which every weight is
wide: the median of some calls, with the topics that this takes, and of a step with all topics. The errors are
compared with bench/measured/weight_grad_error.json, from which bench/chart.py draws; --write writes them there, and
measures nothing else. Exit status 1 if they differ or a limit is exceeded. Needs valgrind. Takes a few minutes.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from shared.costs import Cost, show
from shared.side_by_side import all_but, need_valgrind, run, run_all

PROGRAM = Path(__file__).parent / "workers" / "wide_gradients.py"
MEASURED = PROGRAM.parents[1] / "measured" / "weight_grad_error.json"
MAX_ERROR = 1e-6
TOLERANCE = 1.25
"""The ratio allowed between an error and the recorded one: the order of additions depends on the processor."""


def instructions(python: Path, disabled: str) -> list[float]:
    """Of each thing that the program measures, one call, without the topics ``disabled``.

    It is the median, as a call now and then does what others do not.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--instr-atstart=no", "--collect-atstart=no", f"--callgrind-out-file={folder}/out"]
        under = ["valgrind", "--tool=callgrind", *options]
        # With malloc's usual lists, the work of merging free blocks differs by 1 % from one run to the next.
        allocator = "glibc.malloc.tcache_count=60000"
        rounds = run(python, PROGRAM, "instructions", under=under, GLIBC_TUNABLES=allocator, CASTOFF_DISABLE=disabled)[
            "rounds"
        ]
        dumps = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        totals = [re.search(r"^(?:summary|totals): (\d+)", path.read_text(), re.MULTILINE) for path in dumps]
    counts = [int(total[1]) for total in totals if total is not None]
    return [statistics.median(counts[start : start + rounds]) for start in range(0, len(counts), rounds)]


def accuracy(python: Path) -> dict[str, float]:
    return run(python, PROGRAM, "accuracy")


def is_as_recorded(stock: dict[str, float], patched: dict[str, float]) -> bool:
    """Whether bench/measured/ has these errors."""
    recorded = json.loads(MEASURED.read_text())
    pairs = [
        (recorded[column][name], error)
        for column, errors in (("stock", stock), ("castoff", patched))
        for name, error in errors.items()
    ]
    return all(max(pair) <= TOLERANCE * min(pair) for pair in pairs)


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    write: Annotated[bool, typer.Option("--write", help="Write the errors into bench/measured/.")] = False,
) -> None:
    """.venv/bin/python bench/wide_weight_grad.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare weight gradients under stock and patched wheels: accuracy and instructions.
    """
    stock_errors, errors = run_all([(stock,), (patched,)], accuracy)
    if write:
        MEASURED.write_text(json.dumps({"stock": stock_errors, "castoff": errors}, indent=1) + "\n")
        return
    if not is_as_recorded(stock_errors, errors):
        raise SystemExit(f"{MEASURED.name} has other errors than {stock_errors} and {errors}: run with --write")
    need_valgrind()
    mm, step = range(2)
    others = all_but("grad-dtype", "wide-weight-grad")
    stock_counts, counts, all_counts = run_all([(stock, ""), (patched, others), (patched, "")], instructions)
    costs = [
        Cost("mm, no grad_dtype", stock_counts[mm], counts[mm], 1.03),
        Cost("training step, no grad_dtype", stock_counts[step], counts[step], 1.01),
        Cost("training step, every weight wide", stock_counts[step], counts[-1], 1.05),
        Cost("training step, no grad_dtype, all topics", stock_counts[step], all_counts[step], 1.025),
    ]
    well = show("Instructions of tracing", costs)
    table = Table("", "stock", "patched", title="Relative error after 64 micro-batches")
    for name in errors:
        table.add_row(name, f"{stock_errors[name]:.1e}" if name in stock_errors else "–", f"{errors[name]:.1e}")
    Console().print(table)
    if errors["float32 gradients"] > MAX_ERROR or not well:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
