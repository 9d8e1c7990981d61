"""Operators that leave the device, on stock wheels and on castoff's, over torch's own samples.

--write runs tests/operators/leaves_device.py in both environments, and writes bench/measured/leaves_device.json and the
table of docs/on-device.md. --check runs one part of the operators on castoff's wheels, another one each day
(tests/slices.py), and fails where one leaves the device that did not when it was recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from shared.compact_json import dumps
from shared.pages import put
from shared.side_by_side import run_all

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from slices import slice_of_day  # noqa: E402

WORKER = ROOT / "tests" / "operators" / "leaves_device.py"
MEASURED = ROOT / "bench" / "measured" / "leaves_device.json"
DOCUMENT = ROOT / "docs" / "on-device.md"
BEGIN = "<!-- leaves device: made by bench/leaves_device.py --write -->\n"
END = "<!-- leaves device: end -->"
PARTS = 12

#: Operators of aten that are what Python needs, or whose result has a shape that values tell.
OF_VALUES = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave.Tensor",
    "aten::unique_consecutive",
}

Census = dict[str, dict[str, Any]]


def lines(python: Path, *arguments: str) -> list[Any]:
    """What the program prints in an environment; of one that dies, what it has printed."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    command = [str(python), str(WORKER), *arguments]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.endswith("]")]


def census(python: Path, names: Sequence[str] = ()) -> Census:
    """What each operator of torch's samples hands to the CPU, in an environment; "dies" where it ends its process."""
    left = list(names) or lines(python, "--list")[0]
    found: Census = {}
    while left:
        ran = dict(lines(python, *left))
        found |= ran
        left = left[len(ran) :]
        if left:
            found[left.pop(0)] = {"dies": True}
        print(f"{python}: {len(found)} operators, {len(left)} left", file=sys.stderr, flush=True)
    return found


def leaving_any(found: Census) -> Census:
    return {name: row for name, row in found.items() if row}


def leaving(found: Census, phase: str) -> set[str]:
    return {name for name, row in found.items() if phase in row}


def computing(found: Census) -> set[str]:
    """Those that leave the device in the forward pass for more than a value or a shape."""
    return {name for name, row in found.items() if not OF_VALUES.issuperset(row.get("forward", ()))}


def handed(found: Census) -> set[str]:
    return {op for row in found.values() for phase in ("forward", "backward") for op in row.get(phase, ())}


def table(record: dict[str, Any]) -> str:
    both = [record["stock"], record["castoff"]]
    rows = {
        "operators that leave it in the forward pass": [len(leaving(found, "forward")) for found in both],
        "of these, for more than a value that Python needs or a shape that values tell": [
            len(computing(found)) for found in both
        ],
        "in the backward pass": [len(leaving(found, "backward")) for found in both],
        "operators of aten that are handed to the CPU": [len(handed(found)) for found in both],
    }
    text = (
        f"\nOf {len(record['operators'])} operators of torch's own samples:\n\n| | stock | castoff |\n|---|---|---|\n"
    )
    text += "".join(f"| {name} | {stock} | {castoff} |\n" for name, (stock, castoff) in rows.items())
    return text + f"\nLeft on castoff: {', '.join(f'`{op}`' for op in sorted(handed(both[1])))}.\n\n"


def problems(record: Census, found: Census) -> list[str]:
    """What leaves the device, raises or ends its process, and did not when it was recorded."""
    faults = []
    for name, row in found.items():
        known = record.get(name, {})
        for phase in ("forward", "backward"):
            left = [op for op in row.get(phase, ()) if op not in known.get(phase, ())]
            faults += [
                f"{name}, {phase}: {op} leaves the device, and is not recorded; --write records it" for op in left
            ]
        faults += [
            f"{name} {end}, and is not recorded to" for end in ("raises", "dies") if end in row and end not in known
        ]
    return faults


def main(
    *,
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    stock: Annotated[Path | None, typer.Option(help="The same with stock wheels, for --write.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the record and the page.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the day's operators with the record.")] = False,
) -> None:
    """.venv/bin/python bench/leaves_device.py --stock STOCK/bin/python --patched PATCHED/bin/python --write

    Show which operators torch_xla hands to the CPU.
    """
    record: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    if check:
        found = census(patched, slice_of_day(record["operators"], parts=PARTS))
        faults = problems(record["castoff"], found)
        print("\n".join(faults) or f"{len(found)} operators: none leaves the device that did not before")
        raise SystemExit(1 if faults else 0)
    if stock is None:
        raise SystemExit("expected --stock, found none; give the Python of an environment with stock wheels")
    castoff, of_stock = run_all([(patched,), (stock,)], census)
    record = {"operators": sorted(castoff), "stock": leaving_any(of_stock), "castoff": leaving_any(castoff)}
    print(table(record))
    if write:
        MEASURED.write_text(dumps(record), encoding="utf-8")
        put(DOCUMENT, BEGIN, END, BEGIN + table(record) + END)


if __name__ == "__main__":
    typer.run(main)
