"""What transformer layers cost on TPUs by the TPU compiler: stock, castoff, castoff opted in, and JAX.

Forward and backward of one bfloat16 layer (batch 4, 1,024 tokens, width 1,024, 16 heads, no dropout) of transformers'
Llama, GPT-2, BERT, ViT and T5 and of one written by hand (bench/workers/tpu_layers.py), and the same in JAX
(bench/workers/jax_layers.py), compiled for v5e, v5p and v6e by the pin's own libtpu and for 7x by a later one; no TPU
is needed. For each: estimated cycles, temporary bytes, casts between float dtypes in the program, and converts that are
left in the TPU's HLO. Beside one of them torch_xla's Pallas flash_attention, whose cycles the compiler does not
estimate.

--write puts this into bench/measured/tpu_models.json, a table into docs/speed.md and a sentence into README.md;
bench/chart.py draws it. With --layer or --generation it measures these and keeps the rest. What was compiled is kept,
so a run that was stopped goes on where it was. --check traces every layer, compares the programs with the recorded
ones, and compiles one.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shared import compact_json  # noqa: E402 - found by the line above
from shared.pages import put  # noqa: E402
from shared.side_by_side import environment_with  # noqa: E402

from castoff.builder.environments import Environments  # noqa: E402
from castoff.core.console import Console  # noqa: E402
from castoff.core.context import command_context  # noqa: E402
from castoff.core.errors import CastoffError  # noqa: E402
from castoff.formats.xla_text import parse_hlo  # noqa: E402
from castoff.model.pin import DEFAULT_PIN, load_pin  # noqa: E402
from castoff.tpu.client import Compiled, TpuCompiler  # noqa: E402
from castoff.tpu.trace import FOR_TPU, casts_of  # noqa: E402

MEASURED = ROOT / "bench" / "measured" / "tpu_models.json"
DOCUMENT = ROOT / "docs" / "speed.md"
README = ROOT / "README.md"
BEGIN = "<!-- layers on TPUs: made by bench/tpu_models.py --write -->"
END = "<!-- layers on TPUs: end -->"

LAYERS = ("pre-norm", "Llama", "GPT-2", "BERT", "ViT", "T5")
TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
TRACED = {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", **FOR_TPU}
"""The environment of what traces a program for a TPU, of torch_xla or of JAX."""
COLUMNS = ("stock", "castoff", "opted in", "JAX")
KERNEL = "flash_attention"  # one more column
WITH_KERNEL = ("pre-norm", "v5e")  # of this layer and generation
BESIDE = ("stock", "JAX")
CHECKED = ("pre-norm", "v5e", "opted in")

# What the layer that is written by hand, and any other, is meant to take opted in: of stock's cycles, and of JAX's.
GOALS = {"pre-norm": {"stock": 0.80, "JAX": 0.92}}
OTHERS = {"stock": 1.0, "JAX": 1.0}

FLOATS = frozenset(("f16", "bf16", "f32", "f64"))
_FUNCTION = re.compile(r"^  func\.func (?:public |private )?@(\w+)")
_CALL = re.compile(r"\bcall @(\w+)\(")

Figures = dict[str, int]
Row = dict[str, Figures]  # by column
Record = dict[str, dict[str, Row]]  # by layer and generation
Programs = dict[tuple[str, str], str]  # StableHLO by column and layer


@dataclass(frozen=True)
class Pythons:
    """Of the three environments."""

    stock: Path  # with stock wheels and transformers
    patched: Path  # with patched wheels and transformers
    compiler: Path  # the TPU compiler's, which has jax


def casts(program: str) -> int:
    """Casts between float dtypes in StableHLO text; those of a function count for each call of it."""
    counts: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    name = ""
    for line in program.splitlines():
        if (function := _FUNCTION.match(line)) is not None:
            name = function[1]
            counts[name], calls[name] = 0, []
        elif (call := _CALL.search(line)) is not None:
            calls[name].append(call[1])
        else:
            counts[name] = counts.get(name, 0) + sum(set(cast) <= FLOATS for cast in casts_of(line))

    def all_of(function: str) -> int:
        return counts[function] + sum(map(all_of, calls[function]))

    return all_of("main")


def figures_of(program: str, compiled: Compiled) -> Figures:
    """What is recorded of a layer."""
    module = parse_hlo(compiled.hlo)
    return {
        "cycles": compiled.estimated_cycles,
        "temporary bytes": compiled.memory["temp"],
        "casts": casts(program),
        "converts": sum({source, target} <= FLOATS for source, target in module.converts()),
        "program": identity(program),
    }


def identity(program: str) -> int:
    """A number that only another program has others of."""
    return int(hashlib.sha256(program.encode()).hexdigest()[:12], 16)


def trace(pythons: Pythons, layers: Sequence[str], *, kernel: bool) -> Programs:
    """Each layer's StableHLO in each column; flash_attention's, which has paths of files in it, on request."""
    jobs = {column: list(layers) for column in COLUMNS}
    if kernel and WITH_KERNEL[0] in layers:
        jobs[KERNEL] = [WITH_KERNEL[0]]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:

        def read(column: str) -> Programs:
            folder = Path(temporary) / column.replace(" ", "-")
            folder.mkdir()
            run_tracer(pythons, column, folder, jobs[column])
            say(f"traced {column}")
            return {(column, layer): (folder / layer).read_text(encoding="utf-8") for layer in jobs[column]}

        return {key: program for found in pool.map(read, jobs) for key, program in found.items()}


def run_tracer(pythons: Pythons, column: str, folder: Path, layers: Sequence[str]) -> None:
    """Write the layers' StableHLO into a folder."""
    bench = ROOT / "bench"
    if column == "JAX":
        command = [pythons.compiler, bench / "workers" / "jax_layers.py", folder, *layers]
    else:
        python = pythons.stock if column == "stock" else pythons.patched
        command = [python, bench / "workers" / "tpu_layers.py", folder, column, *layers]
    (with_jax,) = (pythons.compiler.parent.parent / "lib").glob("python*/site-packages")
    environment = environment_with(**TRACED, CASTOFF_JAX=str(with_jax))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the layers cannot be traced: {' '.join(map(str, command))}\n{done.stderr}")


def compilers(generations: Sequence[str], own: Path) -> dict[str, Path]:
    """The Python of each generation's compiler: the pin's own, or that of a later libtpu, made if need be."""
    pin, found = load_pin(ROOT / "pins", DEFAULT_PIN), dict.fromkeys(generations, own)
    for generation in generations:
        topology = TOPOLOGIES[generation]
        if pin.for_tpu(topology) != pin.for_tpu():
            with command_context(Console()) as context:
                found[generation] = Environments(context).tpu_compiler(pin, topology=topology)
    return found


def measure(programs: Programs, generations: Sequence[str], compiler: Path, results: Path, recorded: Record) -> Record:
    """Compile programs for generations, as many at a time as there are cores; not those that are recorded."""
    places = [
        (layer, generation, column)
        for column, layer in programs
        for generation in generations
        if column != KERNEL or (layer, generation) == WITH_KERNEL
    ]
    found: dict[tuple[str, str, str], Figures] = {}
    for layer, generation, column in places:
        known = recorded.get(layer, {}).get(generation, {}).get(column)
        if known is not None and known["program"] == identity(programs[column, layer]):
            found[layer, generation, column] = known
    jobs = [place for place in places if place not in found]
    cores = os.cpu_count() or 1
    pythons = compilers(generations, compiler)
    workers: queue.SimpleQueue[dict[Path, TpuCompiler]] = queue.SimpleQueue()
    for _ in range(cores):
        workers.put({python: TpuCompiler(python, results) for python in pythons.values()})

    def one(job: tuple[str, str, str]) -> tuple[tuple[str, str, str], Figures, str]:
        layer, generation, column = job
        began, worker = time.monotonic(), workers.get()
        try:
            compiled = worker[pythons[generation]].compile(programs[column, layer].encode(), TOPOLOGIES[generation])
        finally:
            workers.put(worker)
        took = "cached" if compiled.cached else f"{time.monotonic() - began:.0f} s"
        return job, figures_of(programs[column, layer], compiled), took

    pool = ThreadPoolExecutor(cores)
    try:
        for number, done in enumerate(as_completed([pool.submit(one, job) for job in jobs]), start=1):
            job, figures, took = done.result()
            found[job] = figures
            say(f"{number}/{len(jobs)} {', '.join(job)}: {figures['cycles']:,} cycles ({took})")
    finally:
        pool.shutdown(cancel_futures=True)
        while not workers.empty():
            for each in workers.get().values():
                each.close()
    record: Record = {}
    for layer, generation, column in places:
        record.setdefault(layer, {}).setdefault(generation, {})[column] = found[layer, generation, column]
    return record


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def misses(record: Record) -> list[str]:
    """Where castoff takes more than it is meant to."""
    found = []
    for layer, rows in record.items():
        for generation, row in rows.items():
            place = f"{layer}, {generation}"
            for column, most in GOALS.get(layer, OTHERS).items():
                if (of := row["opted in"]["cycles"] / row[column]["cycles"]) > most:
                    found.append(f"{place}: opted in takes {of:.3f} of the cycles of {column}, the goal is {most:.2f}")
            found += [
                f"{place}: {column} takes {of:.3f} of the {unit} of stock"
                for column in ("castoff", "opted in")
                for unit in ("cycles", "temporary bytes")
                if (of := row[column][unit] / row["stock"][unit]) > 1.001
            ]
    return found


def cells(row: Row, column: str) -> list[str]:
    """Cycles, beside stock's and JAX's; megabytes; casts and converts."""
    figures = row[column]
    cycles = f"{figures['cycles']:,}"
    if column == KERNEL:
        cycles = f"{cycles} and the kernels'"
    beside = ["" if column == KERNEL else f"{figures['cycles'] / row[other]['cycles']:.2f}" for other in BESIDE]
    return [
        cycles,
        *beside,
        f"{figures['temporary bytes'] / 1e6:,.0f}",
        str(figures["casts"]),
        str(figures["converts"]),
    ]


def table(record: Record) -> str:
    """A row for each layer, generation and column."""
    head = ["layer", "on", "with", "cycles", "of stock's", "of JAX's", "temporary MB", "casts", "converts"]
    lines = [BEGIN, "", f"| {' | '.join(head)} |", "|---|---|---|" + "---:|" * 6]
    for layer, rows in record.items():
        for generation, row in rows.items():
            lines += [f"| {' | '.join([layer, generation, column, *cells(row, column)])} |" for column in row]
    return "\n".join([*lines, *kernels(record), "", END])


def kernels(record: Record) -> list[str]:
    """What flash_attention's kernels may take before the attention of "opted in" takes less."""
    layer, generation = WITH_KERNEL
    row = record.get(layer, {}).get(generation, {})
    if KERNEL not in row:
        return []
    left = row["opted in"]["cycles"] - row[KERNEL]["cycles"]
    saved = row[KERNEL]["temporary bytes"] / row["opted in"]["temporary bytes"]
    return [
        "",
        f"{KERNEL} takes {saved:.2f} of the temporary memory of what is opted in, and fewer cycles if its three "
        f"kernels take fewer than {left:,} together.",
    ]


def sentence(record: Record) -> str:
    """What the README says: the least and the most that castoff takes, opted in."""
    parts = []
    for generation in TOPOLOGIES:
        rows = [rows[generation] for rows in record.values() if generation in rows]
        if rows:
            spans = [span([row["opted in"]["cycles"] / row[column]["cycles"] for row in rows]) for column in BESIDE]
            parts.append(f"{generation} {spans[0]} of stock's cycles and {spans[1]} of JAX's")
    return "\n".join([BEGIN, f"Opted in, a layer takes on {'; on '.join(parts)}.", END])


def span(ratios: Sequence[float]) -> str:
    least, most = (f"{of(ratios):.2f}" for of in (min, max))
    return least if least == most else f"{least} to {most}"


def merged(record: Record, others: Record) -> Record:
    """A record and what it does not have of another one, in the order of LAYERS and TOPOLOGIES."""
    rows = {layer: others.get(layer, {}) | record.get(layer, {}) for layer in LAYERS}
    return {
        layer: {generation: known[generation] for generation in TOPOLOGIES if generation in known}
        for layer, known in rows.items()
        if known
    }


def other_programs(programs: Programs, recorded: Record) -> list[str]:
    """The programs that are not the recorded ones."""
    return [
        f"{layer}, {generation}, {column}: another program, with {casts(program)} casts; recorded with {was['casts']}"
        for (column, layer), program in programs.items()
        for generation, row in recorded.get(layer, {}).items()
        if column in row and (was := row[column])["program"] != identity(program)
    ]


def other_figures(record: Record, recorded: Record) -> list[str]:
    """The figures that are not the recorded ones."""
    return [
        f"{layer}, {generation}, {column}, {unit}: measured {value:,}, recorded {was:,}"
        for layer, rows in record.items()
        for generation, row in rows.items()
        for column, figures in row.items()
        for unit, value in figures.items()
        if (was := recorded[layer][generation][column][unit]) != value
    ]


def chosen(names: list[str] | None, known: Sequence[str], what: str) -> list[str]:
    for name in names or ():
        if name not in known:
            raise SystemExit(f"there is no such {what}: expected one of {', '.join(known)}, found {name}")
    return [name for name in known if name in (names or known)]


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels and transformers.")],
    patched: Annotated[Path, typer.Option(help="Python of one with patched wheels and transformers.")],
    compiler: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_PYTHON", help="`castoff tpu environment` prints it.")],
    results: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_RESULTS", help="`castoff tpu environment` prints it.")],
    layer: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(LAYERS)}. May be repeated.")] = None,
    generation: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(TOPOLOGIES)}.")] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Write bench/measured/, docs/speed.md and README.md, compiling what is not recorded."
        ),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare with bench/measured/.")] = False,
) -> None:
    """.venv/bin/python bench/tpu_models.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compile layers of Llama, GPT-2, BERT, ViT and T5 for TPUs: stock, castoff, castoff opted in, JAX.
    """
    layers, generations = chosen(layer, LAYERS, "layer"), chosen(generation, tuple(TOPOLOGIES), "generation")
    recorded: Record = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    programs = trace(Pythons(stock, patched, compiler), layers, kernel=not check)
    problems = []
    if check:
        problems = other_programs(programs, recorded)
        name, one, column = CHECKED
        programs = {(column, name): programs[column, name]} if name in layers else {}
        generations = [one]
    try:
        record = measure(programs, generations, compiler, results, recorded if write else {})
    except CastoffError as error:
        raise SystemExit(
            f"{error.summary}: expected {error.expected}, found {error.found}. {error.next_step}"
        ) from error
    if check:
        problems += other_figures(record, recorded)
        if problems:
            raise SystemExit("\n".join([*problems, "the record is of other wheels: run bench/tpu_models.py --write"]))
        print(f"{len(layers)} layers are the recorded ones")
        return
    if write:
        record = merged(record, recorded)
        MEASURED.write_text(compact_json.dumps(record, depth=2), encoding="utf-8")
        for path, new in {DOCUMENT: table(record), README: sentence(record)}.items():
            put(path, BEGIN, END, new)
    print(table(record).removeprefix(BEGIN).removesuffix(END).strip(), *misses(record), sep="\n")


if __name__ == "__main__":
    typer.run(main)
