"""What operators of topic on-device cost on a TPU by the TPU compiler, beside the same operators in JAX.

Each operator (bench/workers/on_device_forms.py), with its gradients where it has some, in float32, is compiled for v5e
by the pin's own libtpu; no TPU is needed. --write puts the estimated cycles into docs/on-device.md. Exit status 1 where
castoff takes more than LIMIT times JAX's cycles. Of a choice the branch counts that runs for finite numbers, which is
the cheaper one; where the other takes more, the table has the cycles with it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shared.pages import put  # noqa: E402 - found by the line above
from shared.side_by_side import environment_with  # noqa: E402
from tpu_models import TRACED  # noqa: E402
from workers.on_device_forms import SHAPES  # noqa: E402

from castoff.tpu.client import TpuCompiler  # noqa: E402
from castoff.tpu.estimate import estimate  # noqa: E402

FORMS = Path(__file__).parent / "workers" / "on_device_forms.py"
DOCUMENT = ROOT / "docs" / "on-device.md"
BEGIN = "<!-- cycles: made by bench/on_device_cycles.py --write -->"
END = "<!-- cycles: end -->"
TOPOLOGY = "v5e:2x2"
LIMIT = 1.1


@dataclass(frozen=True)
class Row:
    cycles: int
    of_jax: int
    gaps: str  # what has no estimate, in either of them
    at_most: int  # with the dearer branch of each choice

    @property
    def ratio(self) -> float:
        return self.cycles / self.of_jax


Rows = dict[str, Row]


def traced(python: Path, column: str) -> dict[str, bytes]:
    """Each operator's StableHLO."""
    environment = environment_with(**TRACED)
    with tempfile.TemporaryDirectory() as folder:
        command = [python, FORMS, column, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the operators cannot be traced: {' '.join(map(str, command))}\n{done.stderr}")
        return {name: (Path(folder) / name).read_bytes() for name in SHAPES}


def measured(patched: Path, compiler: Path, results: Path) -> Rows:
    of_castoff, of_jax = traced(patched, "torch"), traced(compiler, "jax")
    with TpuCompiler(compiler, results) as tpu:
        rows: Rows = {}
        for number, name in enumerate(SHAPES, start=1):
            ours, theirs = (tpu.compile(programs[name], TOPOLOGY) for programs in (of_castoff, of_jax))
            usual = estimate(ours.hlo, branch=min)
            gaps = {"castoff": usual.gaps(), "JAX": theirs.estimate.gaps()}
            missing = "; ".join(f"{who}: {gap}" for who, gap in gaps.items() if gap)
            rows[name] = Row(usual.cycles(TOPOLOGY), theirs.estimated_cycles, missing, ours.estimated_cycles)
            say(f"{number}/{len(SHAPES)} {name}: {rows[name].cycles:,}, JAX {rows[name].of_jax:,}")
    return rows


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: Rows) -> str:
    lines = [
        "| operator | castoff, cycles on v5e | JAX | castoff ÷ JAX | without an estimate | |",
        "|---|--:|--:|--:|---|---|",
    ]
    for name, row in rows.items():
        rare = f"{row.at_most:,} where a value is infinite or NaN" if row.at_most > row.cycles else ""
        cells = (name, f"{row.cycles:,}", f"{row.of_jax:,}", f"{row.ratio:.2f}", row.gaps, rare)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    *,
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    compiler: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_PYTHON", help="`castoff tpu environment` prints it.")],
    results: Annotated[Path, typer.Option(envvar="CASTOFF_TPU_RESULTS", help="`castoff tpu environment` prints it.")],
    write: Annotated[bool, typer.Option("--write", help="Put the table into docs/on-device.md.")] = False,
) -> None:
    """.venv/bin/python bench/on_device_cycles.py --patched PATCHED/bin/python

    Compile operators of topic on-device for a TPU, beside JAX's.
    """
    rows = measured(patched, compiler, results)
    print(table(rows))
    if write:
        put(DOCUMENT, BEGIN, END, f"{BEGIN}\n\n{table(rows)}\n\n{END}")
    dearer = [
        f"{name}: {row.cycles:,} cycles, {row.ratio:.2f} of JAX's" for name, row in rows.items() if row.ratio > LIMIT
    ]
    if dearer:
        raise SystemExit(f"expected at most {LIMIT} of JAX's cycles, found more:\n" + "\n".join(dearer))


if __name__ == "__main__":
    typer.run(main)
