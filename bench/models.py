"""Small models of transformers, timm and torchvision, on stock wheels and on castoff's, against the CPU.

--write runs bench/workers/model_worker.py in both environments and writes bench/measured/models.json and
docs/models.md; of the models that are recorded it runs those named by --only, or with --whole all. --check runs those
of the day on castoff's wheels (tests/slices.py), and fails where one is not as recorded, or is worse than on stock
wheels.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from shared.compact_json import dumps
from shared.pages import put
from shared.side_by_side import environment_with

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "programs")]
from record import RIGHT, rank  # noqa: E402
from slices import slice_of_day  # noqa: E402

WORKER = ROOT / "bench" / "workers" / "model_worker.py"
MEASURED = ROOT / "bench" / "measured" / "models.json"
DOCUMENT = ROOT / "docs" / "models.md"
README = ROOT / "README.md"
BEGIN = "<!-- models: made by bench/models.py --write -->"
END = "<!-- models: end -->"
MODES = ("float32", "bfloat16", "autocast")
READS = {"aten::_local_scalar_dense"}
"""The losses are read."""
PARTS = 20
"""CI runs one of so many parts each day, which takes 90 s on two cores."""

Row = dict[str, Any]
Record = dict[str, dict[str, Any]]


def run(python: Path, names: list[str]) -> Iterator[Row]:
    """The rows of models in an environment, as they end."""
    command = [str(python), str(WORKER), *names]
    with subprocess.Popen(command, env=environment_with(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        raise SystemExit(f"{python} bench/workers/model_worker.py failed, see above")


def outcome(row: Row, mode: str) -> str:
    """What a model did in a mode; of one whose process ended in all of them."""
    if "kind" in row:
        return str(row["kind"])
    return str(row[mode]["kind"]) if mode in row else ""


def line_of(row: Row) -> dict[str, Any]:
    """What the record has of a row of an environment."""
    modes = [row[mode] for mode in MODES if mode in row]
    return {
        "outcomes": [outcome(row, mode) for mode in MODES],
        "compilations": sum(each.get("compilations", 0) for each in modes),
        "left": sorted({op for each in modes for op in each.get("left", ())} - READS),
        "error": row.get("bfloat16", {}).get("error"),
    }


def renewed(record: Record, stock: Path | None, patched: Path | None, names: list[str]) -> Record:
    """The record after models were run again. It is written after each of them, as all take an hour."""
    for side, python in (("castoff", patched), ("stock", stock)):
        if python is None:
            continue
        known = [name for name in names if not (side == "stock" and side in record.get(name, {}))]
        for row in run(python, known) if known else ():
            if "unavailable" in row:
                print(f"{row['name']}: not run: {row['unavailable']}", file=sys.stderr)
                continue
            for mode in MODES:
                if outcome(row, mode) != RIGHT and mode in row:
                    print(f"{side}: {row['name']} {mode}: {row[mode]['kind']}: {row[mode]['detail']}", file=sys.stderr)
            record.setdefault(row["name"], {})[side] = line_of(row)
            MEASURED.write_text(dumps(record, 2, sort_keys=True), encoding="utf-8")
    return record


def whole(record: Record) -> Record:
    """The models that were run on both wheels."""
    return {name: line for name, line in sorted(record.items()) if {"castoff", "stock"} <= line.keys()}


def problems(rows: Iterator[Row], record: Record) -> list[str]:
    """What rows of castoff's wheels do not do as recorded."""
    found = []
    for row in rows:
        name = row["name"]
        if "unavailable" in row:
            found.append(f"{name}: does not run on the CPU: {row['unavailable']}")
            continue
        line = record[name]
        for mode, known, stock in zip(MODES, line["castoff"]["outcomes"], line["stock"]["outcomes"], strict=True):
            kind = outcome(row, mode)
            detail = row.get(mode, row).get("detail", "")
            if kind and stock and rank(kind) > rank(stock):
                found.append(f"{name} {mode}: {kind}: {detail}; worse than on stock wheels: {stock}")
            elif kind != known:
                found.append(f"{name} {mode}: {kind}: {detail}; recorded is: {known}")
        left = set(line_of(row)["left"]) - set(line["castoff"]["left"])
        if left:
            found.append(f"{name}: {', '.join(sorted(left))} left the device, and did not when recorded")
    return found


# ---- the page


def cell(castoff: str, stock: str) -> str:
    """What castoff's wheels do, and what stock ones do, if it is another thing."""
    return castoff or "–" if stock == castoff else f"{stock} → {castoff}"


def page(record: Record) -> str:
    record = whole(record)
    rows = [
        "| model | " + " | ".join(MODES) + " | compilations | leaves the device | bfloat16's error |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, line in record.items():
        pairs = zip(columns(line["castoff"]), columns(line["stock"]), strict=True)
        rows.append(f"| {name} | {' | '.join(cell(*pair) for pair in pairs)} |")
    head = ["| as | right on castoff | right on stock |", "|---|---|---|"]
    counts = [f"| {mode} | {ours} of {of} | {theirs} of {of} |" for mode, ours, theirs, of in right(record)]
    return "\n\n".join([BEGIN, "\n".join([*head, *counts]), "\n".join(rows), END])


def right(record: Record) -> Iterator[tuple[str, int, int, int]]:
    """A mode, how many models are right in it on castoff and on stock, and how many have it."""
    for number, mode in enumerate(MODES):
        ours, theirs = ([line[side]["outcomes"][number] for line in record.values()] for side in ("castoff", "stock"))
        yield mode, ours.count(RIGHT), theirs.count(RIGHT), len(ours) - ours.count("")


def sentence(record: Record) -> str:
    """What the README says."""
    counts = [f"{ours} of {of} {in_mode(mode)} ({theirs} on stock)" for mode, ours, theirs, of in right(whole(record))]
    text = f"As on the CPU, within rounding, are {', '.join(counts[:-1])} and {counts[-1]}."
    return f"{BEGIN}\n{text}\n{END}"


def in_mode(mode: str) -> str:
    return f"{'under' if mode == 'autocast' else 'in'} {mode}"


def pages(record: Record) -> dict[Path, str]:
    """What this script writes into each page."""
    return {DOCUMENT: page(record), README: sentence(record)}


def columns(side: dict[str, Any]) -> list[str]:
    """The cells of a model in an environment."""
    left = ", ".join(f"`{op.removeprefix('aten::')}`" for op in side["left"]) or "nothing"
    return [*side["outcomes"], str(side["compilations"]), left, str(side["error"] or "–")]


def read() -> Record:
    found: Record = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    return found


def main(
    *,
    patched: Annotated[Path | None, typer.Option(help="Python of an environment with patched wheels.")] = None,
    stock: Annotated[Path | None, typer.Option(help="The same with stock wheels; for models that are new.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the record and the page.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the models of the day with the record.")] = False,
    every: Annotated[bool, typer.Option("--whole", help="With --write: all models.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Run this model; may be repeated.")] = None,
) -> None:
    """.venv/bin/python bench/models.py --patched PATCHED/bin/python --check

    Show which models do on XLA what they do on the CPU.
    """
    record = read()
    if write:
        # A line with one side is of a run that was interrupted.
        both = whole(record)
        unfinished = [
            name for name, line in record.items() if name not in both or set(line["castoff"]["outcomes"]) - {RIGHT, ""}
        ]
        names = only or ([] if every else unfinished)
        if only or every or names:
            record = renewed(record, stock, patched, names)
        MEASURED.write_text(dumps(whole(record), 2, sort_keys=True), encoding="utf-8")
        for path, text in pages(record).items():
            put(path, BEGIN, END, text)
    elif check:
        if patched is None:
            raise SystemExit("expected --patched beside --check, found none")
        record = whole(record)
        names = only or slice_of_day(sorted(record), PARTS)
        found = problems(run(patched, names), record) if names else []
        for path, text in pages(record).items():
            if text not in path.read_text(encoding="utf-8"):
                found.append(f"{path.name} is not as bench/measured/models.json says: run bench/models.py --write")
        if found:
            raise SystemExit("\n".join(found))
    else:
        print(page(record))


if __name__ == "__main__":
    typer.run(main)
