"""What 48 programs that nobody tuned to cost on TPUs by the TPU compiler: stock wheels and castoff's, by default.

Blocks of published models by transformers and timm and written by hand, with AdamW, dropout, masks, sizes that are odd;
convolutions, recurrent layers, mixtures of experts, losses over many classes, decoding: bench/tpu_corpus_programs.py.
The gradient of a result is an input of its program, but for a loss's. They are traced on CPU-XLA and compiled by the
pin's own libtpu, for 7x by a later one; no TPU is needed. Columns are added by --column ("opted in"). --write puts what
is found into bench/measured/tpu_corpus.json and a table into docs/speed.md, and says which programs take more than 1.01
of stock's cycles or temporary memory, or more than KNOWN allows them: exit status 1.
What was compiled is kept, so that a run that was stopped goes on where it was. --check traces the programs that
--program names, compiles them, and compares with stock.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import compact_json  # noqa: E402 - found by the line above
import tpu_models  # noqa: E402
from before_after import replaced  # noqa: E402
from side_by_side import environment_with  # noqa: E402

from castoff.core.errors import CastoffError  # noqa: E402
from castoff.tpu.trace import FOR_TPU  # noqa: E402

MEASURED = ROOT / "bench" / "measured" / "tpu_corpus.json"
DOCUMENT = ROOT / "docs" / "speed.md"
README = ROOT / "README.md"
PROGRAMS = ROOT / "bench" / "tpu_corpus_programs.py"
BEGIN = "<!-- corpus on TPUs: made by bench/tpu_corpus.py --write -->"
END = "<!-- corpus on TPUs: end -->"
COLUMNS = ("stock", "castoff", "opted in")
UNITS = ("cycles", "temporary bytes")

MOST = 1.01
"""Of stock's cycles and of its temporary memory, by default."""
SMALL = 1_000_000
"""Temporary bytes that are no difference: less than a hundredth of the memory next to a TPU's cores."""

CYCLES, MEMORY = UNITS


class Known(NamedTuple):
    """A program that takes more than MOST."""

    most: float  # of stock's, that it may take
    why: str


KNOWN: dict[tuple[str, str, str], Known] = {}
"""What programs take more of, by generation, how much more at most, and why."""


def trace(python: Path, column: str, names: Sequence[str]) -> tpu_models.Programs:
    """Each program's StableHLO."""
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [python, PROGRAMS, folder, column, *names]
        environment = environment_with(PJRT_DEVICE="CPU", **FOR_TPU)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the programs cannot be traced with {column}:\n{done.stderr}")
        return {(column, name): (Path(folder) / name).read_text(encoding="utf-8") for name in names}


def known_programs() -> list[str]:
    """The names of all programs, read from their file, which imports what this environment does not have."""
    text = PROGRAMS.read_text(encoding="utf-8").partition("PROGRAMS: dict")[2].partition("\n}\n")[0]
    return [line.split('"')[1] for line in text.splitlines() if line.startswith('    "')]


def misses(
    record: tpu_models.Record, known: Mapping[tuple[str, str, str], Known] = KNOWN
) -> dict[tuple[str, str, str], str]:
    """The programs that take more than they may by default, by what they take more of."""
    found = {}
    for name, rows in record.items():
        for generation, row in rows.items():
            for unit in UNITS:
                was, now = row["stock"][unit], row["castoff"][unit]
                place = name, generation, unit
                most = known[place].most if place in known else MOST
                if now > most * was and (unit == "cycles" or now - was > SMALL):
                    found[place] = f"{now:,} {unit}, stock {was:,}, which is more than {most} of them"
    return found


def ratios(record: tpu_models.Record, generation: str, column: str = "castoff") -> list[float]:
    rows = [rows[generation] for rows in record.values() if generation in rows]
    return sorted(row[column]["cycles"] / row["stock"]["cycles"] for row in rows if column in row)


def table(record: tpu_models.Record) -> str:
    """A row for each program; of each generation stock's cycles, castoff's part of them, and temporary memory."""
    generations = [g for g in tpu_models.TOPOLOGIES if any(g in rows for rows in record.values())]
    head = [
        "program",
        *(f"{g}: stock, M cycles | castoff, of stock's | temporary MB, stock | castoff" for g in generations),
    ]
    lines = [BEGIN, "", summary(record, generations), ""]
    lines += [f"| {' | '.join(head)} |", "|---|" + "---:|" * (4 * len(generations))]
    for name, rows in record.items():
        cells = [cell for g in generations for cell in cells_of(rows.get(g))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if KNOWN:
        all_known = "; ".join(f"{name} on {on}, {unit} ({known.why})" for (name, on, unit), known in KNOWN.items())
        lines += ["", f"More than stock: {all_known}."]
    return "\n".join([*lines, "", END])


def sentence(record: tpu_models.Record) -> str:
    """What the README says of all, the worst included."""
    generations = [g for g in tpu_models.TOPOLOGIES if any(g in rows for rows in record.values())]
    text = summary(record, generations)
    return "\n".join([BEGIN, f"Of programs that nobody tuned to: {text[0].lower()}{text[1:]}", END])


def cells_of(row: tpu_models.Row | None) -> list[str]:
    if row is None:
        return ["", "", "", ""]
    stock, found = row["stock"], row["castoff"]
    memory = [f"{figures['temporary bytes'] / 1e6:,.1f}" for figures in (stock, found)]
    return [f"{stock['cycles'] / 1e6:.3f}", f"{found['cycles'] / stock['cycles']:.2f}", *memory]


def summary(record: tpu_models.Record, generations: Sequence[str]) -> str:
    """The median, the best and the worst."""
    parts = []
    for generation in generations:
        found = ratios(record, generation)
        parts.append(
            f"on {generation} {statistics.median(found):.2f} of stock's cycles in the median of {len(found)} programs, "
            f"{found[0]:.2f} at best and {found[-1]:.2f} at worst"
        )
    return f"By default castoff takes {'; '.join(parts)}."


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels, transformers and timm.")],
    patched: Annotated[Path, typer.Option(help="Python of one with patched wheels, transformers and timm.")],
    compiler: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_PYTHON", help="`castoff tpu environment` prints it.")],
    results: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_RESULTS", help="`castoff tpu environment` prints it.")],
    program: Annotated[list[str] | None, typer.Option(help="One of the programs. May be repeated.")] = None,
    generation: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(tpu_models.TOPOLOGIES)}.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Beside stock and castoff: opted in.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write bench/measured/ and docs/speed.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare with bench/measured/.")] = False,
) -> None:
    """.venv/bin/python bench/tpu_corpus.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compile programs as people write them for TPUs: stock and castoff.
    """
    names = tpu_models.chosen(program, known_programs(), "program")
    generations = tpu_models.chosen(generation, tuple(tpu_models.TOPOLOGIES), "generation")
    columns = tpu_models.chosen([*COLUMNS[:2], *(column or ())], COLUMNS, "column")
    recorded: tpu_models.Record = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    programs: tpu_models.Programs = {}
    for each in columns:
        programs |= trace(stock if each == "stock" else patched, each, names)
    programs = {(each, name): programs[each, name] for name in names for each in columns}  # a program's together
    try:
        record = tpu_models.measure(programs, generations, compiler, results, recorded)
    except CastoffError as error:
        raise SystemExit(f"{error.summary}: expected {error.expected}, found {error.found}") from error
    problems = [f"{place[0]}, {place[1]}: {what}" for place, what in misses(record).items()]
    if check:
        problems += tpu_models.other_figures(record, recorded)
    if write:
        together = {name: recorded.get(name, {}) | record.get(name, {}) for name in known_programs()}
        together = {name: rows for name, rows in together.items() if rows}
        MEASURED.write_text(compact_json.dumps(together, depth=3), encoding="utf-8")
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(replaced(document, BEGIN, END, table(together)), encoding="utf-8")
        README.write_text(
            replaced(README.read_text(encoding="utf-8"), BEGIN, END, sentence(together)), encoding="utf-8"
        )
    for generation_ in generations:
        print(generation_, "median", f"{statistics.median(ratios(record, generation_)):.3f}")
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
