"""What float32 gradients gain in training: a small GPT on a text from a grammar, with 64 micro-batches a step.

Measured in five ways of training, with 8 seeds: the loss of each step, the errors of gradients by depth and by number
of micro-batches; and of a larger model the estimated cycles and the bytes of a step, by the TPU compiler. Into
bench/measured/training.json, piece by piece: a run that is stopped goes on where it was. About twenty-five minutes of
one core in all. bench/chart.py draws from it.

--check needs half a minute: errors of the gradients of a smaller model, exit status 1 if one that has to be smaller
than another is not, here or in the record, or if docs/training-measured.md has other tables.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from shared import training_record
from shared.side_by_side import run

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PROGRAM = ROOT / "bench" / "workers" / "training_gpt.py"
PAGE = ROOT / "docs" / "training-measured.md"
STEPS = 40
TOPOLOGIES = ("v5e:2x2",)


def answers(python: Path, *arguments: object) -> Iterator[dict[str, Any]]:
    """The JSON that the program prints, line by line as it comes."""
    command = [str(python), str(PROGRAM), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if program.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed, as it says above")


def measure(python: Path, seeds: list[int]) -> None:
    """Measure what is not in the record yet, with a few seeds at a time, so that all kinds have about the same."""
    for some in (seeds[start : start + 4] for start in range(0, len(seeds), 4)):
        for kind in training_record.NAMES:
            known = training_record.read()["losses"].get(kind, {})
            if missing := [seed for seed in some if str(seed) not in known]:
                for answer in answers(python, "losses", kind, STEPS, *missing):
                    note(answer["losses"], "losses", kind, str(answer["seed"]))
        known = training_record.read()["gradients"]
        if missing := [seed for seed in some if str(seed) not in known]:
            for answer in answers(python, "gradients", *missing):
                note(answer["errors"], "gradients", str(answer["seed"]))


def note(found: object, *path: str) -> None:
    """Put a piece into its place in the record, and say so."""
    record = place = training_record.read()
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = found
    training_record.write(record)
    print("measured:", *path, flush=True)


def measure_tpu(python: Path) -> None:
    """Compile each kind's two programs for each topology; the environment says where the compiler is."""
    from castoff.core.errors import CastoffError
    from castoff.tpu.client import TpuCompiler

    places = [os.environ.get(name) for name in ("CASTOFF_TPU_PYTHON", "CASTOFF_TPU_RESULTS")]
    if None in places:
        raise SystemExit("expected the TPU compiler, found none: export $(.venv/bin/castoff tpu environment)")
    try:
        with TpuCompiler(*map(Path, filter(None, places))) as tpu, tempfile.TemporaryDirectory() as folder:
            for kind in training_record.NAMES:
                run(python, PROGRAM, "tpu", kind, folder)
                for topology in TOPOLOGIES:
                    found = {path.name: figures(tpu, path, topology) for path in sorted(Path(folder).iterdir())}
                    note(found, "tpu", topology, kind)
    except CastoffError as error:
        raise SystemExit(
            f"{error.summary}: expected {error.expected}, found {error.found}. {error.next_step}"
        ) from error


def figures(tpu: Any, program: Path, topology: str) -> dict[str, int]:
    compiled = tpu.compile(program.read_bytes(), topology)
    return {
        "cycles": compiled.estimated_cycles,
        "argument bytes": compiled.memory["argument"],
        "temporary bytes": compiled.memory["temp"],
    }


def with_tables(text: str) -> str:
    """The page with the tables of the record."""
    for name, table in training_record.tables(training_record.read()).items():
        begin, end = f"<!-- {name}: made by bench/training.py --write -->", f"<!-- {name}: end -->"
        place = re.compile(rf"(?<={begin}\n\n).*?(?=\n\n{end})", re.DOTALL)
        text, count = place.subn(lambda _, table=table: table, text)
        if count != 1:
            raise SystemExit(f"expected one place for the table {name} in {PAGE.name}, found {count}")
    return text


def check(python: Path) -> None:
    """Exit with 1 if an order is not as the page says, or the page not as the record."""
    wrong = training_record.disorder(run(python, PROGRAM, "check")["errors"])
    for seed, errors in training_record.read()["gradients"].items():
        wrong += [f"seed {seed}: {line}" for line in training_record.disorder(errors)]
    text = PAGE.read_text(encoding="utf-8")
    if with_tables(text) != text:
        wrong.append(f"{PAGE.name} has other tables than the record: run with --write")
    if wrong:
        raise SystemExit("\n".join(wrong))


def main(
    patched: Annotated[Path | None, typer.Option(help="Python of an environment with patched wheels.")] = None,
    seeds: Annotated[int, typer.Option(help="Measure the first of the seeds only.")] = len(training_record.SEEDS),
    tpu: Annotated[bool, typer.Option("--tpu", help="Measure what the TPU compiler says.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Measure nothing; write the page's tables.")] = False,
    checked: Annotated[bool, typer.Option("--check", help="Half a minute, for CI.")] = False,
) -> None:
    """.venv/bin/python bench/training.py --patched PATCHED/bin/python

    Measure what float32 gradients gain in training: what is not in bench/measured/training.json yet.
    """
    if write:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    elif patched is None:
        raise SystemExit("expected --patched or --write, found neither: --patched $(.venv/bin/castoff env patched)")
    elif checked:
        check(patched)
    elif tpu:
        measure_tpu(patched)
    else:
        measure(patched, list(training_record.SEEDS)[:seeds])


if __name__ == "__main__":
    typer.run(main)
