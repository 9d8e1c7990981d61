"""Random training programs, traced and replayed: losses, parameters and optimizer state have to be equal to the bit.

.venv/bin/python bench/replay_sweep.py --patched PATCHED/bin/python --check

The programs are made of numbers by replay_programs.py. A difference that is a rounding is counted, any other fails.
--check runs the programs of the day. --write runs all, and puts the counts into docs/step-replay.md. --models does so
with models of transformers, timm and torchvision (replay_models.py), in half an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from shared.pages import put
from shared.side_by_side import run_all

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from slices import slice_of_day  # noqa: E402

WORKER = Path(__file__).parent / "workers" / "replay_sweep_worker.py"
PAGE = ROOT / "docs" / "step-replay.md"
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"
MODELS = Path(__file__).parent / "workers" / "replay_models.py"
BEGIN_MODELS, END_MODELS = "<!-- models: begin -->", "<!-- models: end -->"
PROGRAMS, PARTS = 200, 25
#: Optimized, XLA:CPU fuses a graph with fewer outputs in another way, and rounds in another place.
UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
SAID = {"rounded": "differ by roundings"}


def outcome(python: Path, number: int) -> tuple[str, str]:
    """Its number, and "equal", "rounded", "different", "fails: …", or "refused: …" of a program in its own process."""
    environment = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {UNOPTIMIZED}"}
    command = [str(python), str(WORKER), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        return str(number), f"fails: {(done.stderr.strip() or 'no output').splitlines()[-1][:200]}"
    print(done.stdout, end="", file=sys.stderr, flush=True)
    row: dict[str, Any] = json.loads(done.stdout)
    reason = row.get("reason", "").split(" at ")[0].split(". This call")[0]
    return str(number), f"refused: {reason}" if reason else row["outcome"]


def table(found: dict[str, str]) -> str:
    counts = Counter(found.values())
    equal = counts.pop("equal", 0)
    lines = [
        f"Of {len(found)} random training programs (`bench/replay_sweep.py`, without XLA's optimizations), {equal} are "
        "as the traced run after 20 calls, to the bit: results, parameters, buffers, gradients and optimizer state.",
        "",
        "| the others | programs |",
        "|---|--:|",
        *(f"| {SAID.get(what, what)} | {count} |" for what, count in counts.most_common()),
    ]
    return "\n".join(lines)


def table_of_models(python: Path) -> str:
    """Counts of what became of the models, and the names of those that are not replayed."""
    done = subprocess.run([str(python), str(MODELS)], stdout=subprocess.PIPE, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return told_of_models([row for row in rows if row["outcome"] != "unavailable"])


def told_of_models(rows: list[dict[str, Any]]) -> str:
    equal = [row for row in rows if row["outcome"] == "equal"]
    packages = ", ".join(sorted({row["name"].split("/")[0] for row in rows}))
    lines = [
        f"Of {len(rows)} small models ({packages}; `bench/workers/replay_models.py`), {len(equal)} "
        "are replayed, and are as the traced run after eight steps with and without padding, to the bit.",
    ]
    others: dict[str, list[str]] = {}
    for row in rows:
        if row["outcome"] != "equal":
            what = f"{row['outcome']}: {row['reason'].split(' at ')[0]}" if "reason" in row else row["outcome"]
            others.setdefault(what, []).append(row["name"].split("/")[1])
    if others:
        lines += ["", "| the others | models |", "|---|---|"]
        lines += [f"| {what} | {', '.join(names)} |" for what, names in others.items()]
    return "\n".join(lines)


def _models(python: Path, *, write: bool) -> None:
    text = table_of_models(python)
    print(text)
    if write:
        new = f"{BEGIN_MODELS}\n{text}\n{END_MODELS}"
        put(PAGE, BEGIN_MODELS, END_MODELS, new)


def main(
    *,
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    check: Annotated[bool, typer.Option("--check", help="Run the programs of the day.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Run all, and write docs/step-replay.md.")] = False,
    models: Annotated[bool, typer.Option("--models", help="Run models, in place of the programs.")] = False,
) -> None:
    """.venv/bin/python bench/replay_sweep.py --patched PATCHED/bin/python --check

    Compare random training programs, traced and replayed.
    """
    if models:
        _models(patched, write=write)
        return
    numbers = slice_of_day(range(PROGRAMS), PARTS) if check else range(PROGRAMS)
    found = dict(run_all([(patched, number) for number in numbers], outcome))
    print(table(found))
    if write:
        text = f"{BEGIN}\n{table(found)}\n{END}"
        put(PAGE, BEGIN, END, text)
    wrong = {number: what for number, what in found.items() if what.split(":")[0] in ("different", "fails")}
    if wrong:
        raise SystemExit(f"expected equal runs or a refusal, found: {wrong}")


if __name__ == "__main__":
    typer.run(main)
