"""Runs the examples of torch's docstrings on the CPU and on XLA, and prints a line of JSON for each that differs.

    PJRT_DEVICE=CPU ENVIRONMENT/bin/python tests/docstrings/sweep.py [NAME…] [--of-the-day]

The last line has the docstrings and the number of their statements. A statement of which the values differ between two
seeds on the CPU is random: there types, dtypes and shapes are compared. Several docstrings share a fork of this
process; if it dies, each gets one of its own.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "docstrings"), str(TESTS / "programs"), str(TESTS)]

from forks import rows  # noqa: E402
from record import RIGHT  # noqa: E402
from runner import MODULES, prepare  # noqa: E402
from slices import slice_of_day  # noqa: E402

if TYPE_CHECKING:
    from judge import Outcome, Run

PARTS = 2
SHARED = 8
"""So many docstrings in a fork: most of a short one's time is the start of the runtime."""

LARGEST = 2**20
"""Examples with larger tensors, as of convolutions of volumes, would take most of the time; they are left out."""

Row = dict[str, Any]


def outcomes(statements: list[str]) -> list[Row]:
    """The statements that differ: their source, kind and detail."""
    import docstring_examples
    import torch

    cpu = docstring_examples.runs_of(statements, torch.device("cpu"), seed=0)
    if any(isinstance(leaf, torch.Tensor) and leaf.numel() > LARGEST for run in cpu for leaf in run.leaves):
        return []
    again = docstring_examples.runs_of(statements, torch.device("cpu"), seed=1)
    here = docstring_examples.runs_of(statements, torch.device("xla"), seed=0)
    found = zip(statements, map(outcome, here, cpu, again), strict=True)
    return [{"statement": statement, "kind": o.kind, "detail": o.detail} for statement, o in found if o.kind != RIGHT]


def outcome(here: Run, there: Run, with_another_seed: Run) -> Outcome:
    """The outcome of a statement."""
    import docstring_examples
    import judge

    if judge.judged(with_another_seed, there).kind == RIGHT:
        noise = docstring_examples.without_noise
        return judge.judged(noise(here, there), noise(there, here))
    return judge.judged(*map(docstring_examples.without_values, (here, there)))


def swept(names: list[str], processes: int, logs: Path) -> Iterator[Row]:
    """A row for each statement that differs, and for each docstring that ends its process."""
    alone = []
    groups = {f"{i}": names[i : i + SHARED] for i in range(0, len(names), SHARED)}
    for row in rows(groups, functools.partial(differences, groups), processes=processes, logs=logs):
        if row["kind"] == "ran":
            yield from rows_of(row)
        else:
            alone += groups[row["name"]]
    groups = {name: [name] for name in alone}
    for row in rows(groups, functools.partial(differences, groups), processes=processes, logs=logs):
        yield from rows_of(row) if row["kind"] == "ran" else [{**row, "statement": ""}]


def differences(groups: dict[str, list[str]], group: str) -> Row:
    """What differs of the docstrings of a group, in this process."""
    return {"name": group, "kind": "ran", "differ": {name: outcomes(all_docstrings()[name]) for name in groups[group]}}


@functools.cache
def all_docstrings() -> dict[str, list[str]]:
    import docstring_examples

    return docstring_examples.docstrings()


def rows_of(row: Row) -> Iterator[Row]:
    for name, found in row["differ"].items():
        for each in found:
            yield {"name": name, **each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of what the docstrings describe; all of them by default")
    parser.add_argument("--of-the-day", action="store_true", help="every other one, the rest on the next day")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    prepare(MODULES)
    names = [name for name in all_docstrings() if not options.names or name in options.names]
    if options.of_the_day:
        names = slice_of_day(names, PARTS)
    with tempfile.TemporaryDirectory() as folder:
        for row in swept(names, options.processes, Path(folder)):
            print(json.dumps(row), flush=True)
    print(json.dumps({"docstrings": names, "statements": sum(len(all_docstrings()[name]) for name in names)}))


if __name__ == "__main__":
    main()
