"""What programs as people write them cost on TPUs by the TPU compiler: stock wheels and castoff's, by default.

Blocks of published models by transformers and timm and written by hand, with AdamW, dropout, masks, sizes that are odd;
convolutions, recurrent layers, mixtures of experts, losses over many classes, decoding:
bench/workers/tpu_corpus_programs.py. Since that was written topics were made better on some of them. Nothing is tuned
to bench/workers/tpu_held_out_programs.py, of which the summary is another one. The gradient of a result is an input of
its program, but for a loss's. They are traced on CPU-XLA and compiled by the pin's own libtpu, for 7x by a later one;
no TPU is needed. Columns are added by --column: "opted in", within native_mul_context, and "JAX", the same modules by
torchax (bench/workers/tpu_corpus_jax.py). --write puts what is found into bench/measured/tpu_corpus.json and a table
into docs/speed.md, and says which programs take more than 1.01 of stock's cycles or temporary memory, or more than
KNOWN allows them: exit status 1. What was compiled is kept, so that a run that was stopped goes on where it was.
--check traces those of the day (tests/slices.py), or those that --program names: they are the recorded ones.
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
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import tpu_models  # noqa: E402
from shared import compact_json  # noqa: E402 - found by the line above
from shared.pages import put  # noqa: E402
from shared.side_by_side import environment_with  # noqa: E402
from slices import slice_of_day  # noqa: E402

from castoff.core.errors import CastoffError  # noqa: E402

MEASURED = ROOT / "bench" / "measured" / "tpu_corpus.json"
DOCUMENT = ROOT / "docs" / "speed.md"
README = ROOT / "README.md"
PROGRAMS = ROOT / "bench" / "workers" / "tpu_corpus_programs.py"
HELD_OUT = ROOT / "bench" / "workers" / "tpu_held_out_programs.py"
TUNED_SINCE = {
    *("vision layer, T 257", "DINOv2, AdamW", "Gemma 2, softcap, AdamW", "ConvNeXt 2 block, AdamW"),
    *("nn.MultiheadAttention, weights", "nn.TransformerDecoderLayer", "Mistral", "SigLIP, AdamW"),
    *("Swin block, shifted, AdamW", "ViT, dropout, T 197"),
}
"""Those of HELD_OUT on which a topic's choice of a form was measured since."""
IN_JAX = ROOT / "bench" / "workers" / "tpu_corpus_jax.py"
BEGIN = "<!-- corpus on TPUs: made by bench/tpu_corpus.py --write -->"
END = "<!-- corpus on TPUs: end -->"
COLUMNS = ("stock", "castoff", "opted in", "JAX")
UNITS = ("cycles", "temporary bytes")
DAYS = 16
"""In so many all programs are checked."""

MOST = 1.01
"""Of stock's cycles and of its temporary memory, by default."""
SMALL = 1_000_000
"""Temporary bytes that are no difference: less than a hundredth of the memory next to a TPU's cores."""

CYCLES, MEMORY = UNITS


class Known(NamedTuple):
    """A program that takes more than MOST."""

    most: float  # of stock's, that it may take; of SMALL, if stock's are fewer
    why: str


NOT_IN_JAX = (
    "GRU",
    "GRU, both directions",
    "attention of a computed query, heads of 256",
    "attention of a computed query, causal",
)
"""What ends torchax's process, or is written for torch alone."""

KNOWN: dict[tuple[str, str, str], Known] = {
    ("attention alone, heads of 256", "v6e", MEMORY): Known(34.08, "0.93 of stock's cycles"),
    ("LSTM", "v5e", MEMORY): Known(3.31, "0.24 of stock's cycles"),
    ("relative positions", "v6e", MEMORY): Known(43.69, "0.68 of stock's cycles"),
    ("vision layer, T 257", "v6e", MEMORY): Known(1.335, "0.90 of stock's cycles"),
    ("triplet loss, AdamW", "v5e", MEMORY): Known(1.81, "1.005 of stock's cycles; stock keeps all next to the cores"),
    ("MLP-Mixer block", "v6e", MEMORY): Known(20.78, "0.84 of stock's cycles; stock keeps all next to the cores"),
    ("cross-encoder, AdamW", "v5e", MEMORY): Known(3.3, "0.71 of stock's cycles; stock keeps all next to the cores"),
    ("SigLIP, AdamW", "v6e", MEMORY): Known(1.8, "0.96 of stock's cycles; stock keeps all next to the cores"),
    ("DeBERTa 2, AdamW", "v5e", MEMORY): Known(1.155, "0.93 of stock's cycles"),
    ("vision layer, T 257, served", "v5e", CYCLES): Known(1.02, "norms and gelu are float32"),
    ("ViT, dropout, T 197", "v5e", MEMORY): Known(1.215, "0.68 of stock's cycles"),
    ("ViT, dropout, T 197", "v6e", MEMORY): Known(1.2, "0.55 of stock's cycles"),
    ("GPT block, dropout, T 255", "v6e", MEMORY): Known(1.51, "0.51 of stock's cycles"),
    ("embeddings by pairs", "v6e", MEMORY): Known(1.12, "stock's cycles; stock keeps all next to the cores"),
    ("T5, relative bias, AdamW", "v6e", MEMORY): Known(3.12, "0.66 of stock's cycles"),
    ("diffusion residual, AdamW", "v6e", MEMORY): Known(
        29.0, "0.85 of stock's cycles; stock keeps all next to the cores"
    ),
    ("DeBERTa 2, AdamW", "v6e", MEMORY): Known(1.49, "0.91 of stock's cycles"),
    ("ConvNeXt block", "v5p", MEMORY): Known(1.49, "0.96 of stock's cycles"),
    ("contrastive", "v5p", MEMORY): Known(2.89, "0.86 of stock's cycles"),
    ("UNet residual block", "v5p", CYCLES): Known(1.02, "0.98 of stock's cycles on v5e, 0.72 on v6e"),
    ("BLOOM", "v5p", MEMORY): Known(1.340, "0.86 of stock's cycles"),
    ("vision layer, T 257", "v5p", MEMORY): Known(1.042, "0.95 of stock's cycles"),
    ("nn.MultiheadAttention, weights", "v5p", MEMORY): Known(1.960, "0.91 of stock's cycles"),
    ("selective scan, AdamW", "v5p", MEMORY): Known(1.164, "1.00 of stock's cycles"),
    ("diffusion residual, AdamW", "v5p", CYCLES): Known(1.020, "1.00 of stock's cycles on v5e, 0.85 on v6e"),
    ("RoBERTa layer, padding, dropout, T 200", "v5p", MEMORY): Known(1.049, "0.81 of stock's cycles"),
    ("cross-encoder, AdamW", "v5p", MEMORY): Known(1.071, "0.78 of stock's cycles"),
    ("DeBERTa 2, AdamW", "v5p", MEMORY): Known(1.139, "0.96 of stock's cycles"),
    ("ViT, dropout, T 197", "v5p", MEMORY): Known(1.134, "0.73 of stock's cycles"),
}
"""What programs take more of, by generation, how much more at most, and why."""


def trace(python: Path, column: str, names: Sequence[str], compiler: Path) -> tpu_models.Programs:
    """Each program's StableHLO; in JAX, which is the compiler's, not that of those that torchax cannot run."""
    scripts = {path: names_in(path) for path in (PROGRAMS, HELD_OUT)}
    if column == "JAX":
        scripts = {IN_JAX: [name for name in scripts[PROGRAMS] if name not in NOT_IN_JAX]}
    (with_jax,) = (compiler.parent.parent / "lib").glob("python*/site-packages")
    environment = environment_with(**tpu_models.TRACED, CASTOFF_JAX=str(with_jax))
    found: tpu_models.Programs = {}
    with tempfile.TemporaryDirectory() as folder:
        for script, known in scripts.items():
            asked = [name for name in known if name in names]
            if not asked:
                continue
            command: list[str | Path] = [python, script, folder, *([] if column == "JAX" else [column]), *asked]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"the programs cannot be traced with {column}:\n{done.stderr}")
            found |= {(column, name): (Path(folder) / name).read_text(encoding="utf-8") for name in asked}
    return found


def together(record: tpu_models.Record, others: tpu_models.Record) -> tpu_models.Record:
    """A record, and what it does not have of another one, in the order of all programs."""
    found: tpu_models.Record = {}
    for name in known_programs():
        for generation in tpu_models.TOPOLOGIES:
            rows = [each.get(name, {}).get(generation, {}) for each in (others, record)]
            row = {column: figures for each in rows for column, figures in each.items()}
            if row:
                found.setdefault(name, {})[generation] = {each: row[each] for each in COLUMNS if each in row}
    return found


def names_in(path: Path) -> list[str]:
    """The names of its programs, read from a file that imports what this environment does not have."""
    text = path.read_text(encoding="utf-8").partition("PROGRAMS: dict")[2].partition("\n}\n")[0]
    return [line.split('"')[1] for line in text.splitlines() if line.startswith('    "')]


def known_programs() -> list[str]:
    return names_in(PROGRAMS) + names_in(HELD_OUT)


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
                least = was if unit == "cycles" else max(was, SMALL) if place in known else was
                if now > most * least and (unit == "cycles" or now - was > SMALL):
                    found[place] = f"{now:,} {unit}, stock {was:,}, which is more than {most} of them"
    return found


def ratios(record: tpu_models.Record, generation: str, column: str = "castoff", beside: str = "stock") -> list[float]:
    rows = [rows[generation] for rows in record.values() if generation in rows]
    return sorted(row[column]["cycles"] / row[beside]["cycles"] for row in rows if {column, beside} <= row.keys())


def measured_columns(record: tpu_models.Record, generation: str) -> list[str]:
    """The columns of cycles that anything was measured of."""
    return [column for column in COLUMNS if any(column in rows.get(generation, ()) for rows in record.values())]


def measured_generations(record: tpu_models.Record) -> list[str]:
    return [g for g in tpu_models.TOPOLOGIES if any(g in rows for rows in record.values())]


def table(record: tpu_models.Record) -> str:
    """A row for each program; of each generation stock's cycles, the others' part of them, and temporary memory."""
    columns = {g: measured_columns(record, g) for g in measured_generations(record)}
    head = ["program"]
    for g, found in columns.items():
        head += [f"{g}: stock, M cycles", "castoff, of stock's", *found[2:], "temporary MB, stock", "castoff"]
    lines = [BEGIN, "", summary(record), ""]
    lines += [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, rows in record.items():
        cells = [cell for g, found in columns.items() for cell in cells_of(rows.get(g), found)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if KNOWN:
        all_known = "; ".join(f"{name} on {on}, {unit} ({known.why})" for (name, on, unit), known in KNOWN.items())
        lines += ["", f"More than stock: {all_known}."]
    return "\n".join([*lines, "", END])


def sentence(record: tpu_models.Record) -> str:
    """What the README says of all, the worst included."""
    text = summary(record)
    return "\n".join([BEGIN, f"Of programs as people write them: {text[0].lower()}{text[1:]}", END])


def cells_of(row: tpu_models.Row | None, columns: Sequence[str]) -> list[str]:
    if row is None:
        return [""] * (len(columns) + 2)
    stock, found = row["stock"], row["castoff"]
    memory = [f"{figures['temporary bytes'] / 1e6:,.1f}" for figures in (stock, found)]
    of = [f"{row[each]['cycles'] / stock['cycles']:.2f}" if each in row else "" for each in columns[1:]]
    return [f"{stock['cycles'] / 1e6:.3f}", *of, *memory]


def summary(record: tpu_models.Record) -> str:
    """Of those that topics may have been tuned to, and of the others."""
    later = set(names_in(HELD_OUT)) - TUNED_SINCE
    known = {name: rows for name, rows in record.items() if name not in later}
    held_out = {name: rows for name, rows in record.items() if name in later}
    text = f"By default castoff takes {_of_stock(known)}."
    return f"{text} Of programs that nothing was tuned to it takes {_of_stock(held_out)}." if held_out else text


def _of_stock(record: tpu_models.Record) -> str:
    """The median, the best and the worst, and the median beside JAX."""
    parts = []
    for generation in measured_generations(record):
        found = ratios(record, generation)
        parts.append(
            f"on {generation} {statistics.median(found):.2f} of stock's cycles in the median of {len(found)} programs, "
            f"{found[0]:.2f} at best and {found[-1]:.2f} at worst"
        )
        if in_jax := ratios(record, generation, beside="JAX"):
            parts[-1] += f", and {statistics.median(in_jax):.2f} of those of {len(in_jax)} in JAX by torchax"
    return "; ".join(parts)


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels and ci/models.lock.")],
    patched: Annotated[Path, typer.Option(help="Python of one with patched wheels and ci/models.lock.")],
    compiler: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_PYTHON", help="`castoff tpu environment` prints it.")],
    results: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_RESULTS", help="`castoff tpu environment` prints it.")],
    program: Annotated[list[str] | None, typer.Option(help="One of the programs. May be repeated.")] = None,
    generation: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(tpu_models.TOPOLOGIES)}.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Beside stock and castoff: opted in, JAX.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write bench/measured/ and docs/speed.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Are the day's programs the recorded ones?")] = False,
) -> None:
    """.venv/bin/python bench/tpu_corpus.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compile programs as people write them for TPUs: stock and castoff.
    """
    names = tpu_models.chosen(program, known_programs(), "program")
    if check and not program:
        names = slice_of_day(names, DAYS)
    generations = tpu_models.chosen(generation, tuple(tpu_models.TOPOLOGIES), "generation")
    columns = tpu_models.chosen([*COLUMNS[:2], *(column or ())], COLUMNS, "column")
    recorded: tpu_models.Record = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    programs: tpu_models.Programs = {}
    for each in columns:
        programs |= trace(stock if each in ("stock", "JAX") else patched, each, names, compiler)
    places = [(each, name) for name in names for each in columns]  # a program's together
    programs = {place: programs[place] for place in places if place in programs}
    if check:
        finish(tpu_models.other_programs(programs, recorded))
        return
    try:
        record = tpu_models.measure(programs, generations, compiler, results, recorded)
    except CastoffError as error:
        raise SystemExit(f"{error.summary}: expected {error.expected}, found {error.found}") from error
    problems = [f"{place[0]}, {place[1]}: {what}" for place, what in misses(record).items()]
    if write:
        whole = together(record, recorded)
        MEASURED.write_text(compact_json.dumps(whole, depth=2), encoding="utf-8")
        for path, new in {DOCUMENT: table(whole), README: sentence(whole)}.items():
            put(path, BEGIN, END, new)
    for generation_ in generations:
        print(generation_, "median", f"{statistics.median(ratios(record, generation_)):.3f}")
    finish(problems)


def finish(problems: Sequence[str]) -> None:
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
