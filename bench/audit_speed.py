"""The cost of an audit, in processor seconds beside those of the step that it audits.

Runs audited_seconds.py in an environment with patched wheels and transformers: two steps of a small Llama on
CPU-XLA and their audit, which traces them and computes nothing; and a step of ViT-B/16 on the meta device and its
--meta audit, the least of some rounds. Exit status 1 if an audit takes more than its limit times the step's seconds:
of Llama it took 0.2 of them, as XLA compiles nothing in it, of ViT 1.5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from shared.costs import Cost, show
from shared.side_by_side import run, run_all

PROGRAM = Path(__file__).parent / "workers" / "audited_seconds.py"


def main(
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels and transformers.")],
    limit: Annotated[float, typer.Option(help="The highest ratio allowed for Llama.")] = 1.0,
    limit_meta: Annotated[float, typer.Option(help="The highest ratio allowed for ViT-B/16 on meta.")] = 2.0,
) -> None:
    """.venv/bin/python bench/audit_speed.py --patched PATCHED/bin/python

    Compare the processor seconds of steps with those of their audits.
    """
    ways = [("llama", "plain"), ("llama", "audit"), ("vit",)]
    plain, audit, vit = run_all([(patched, PROGRAM, *way) for way in ways], run)
    costs = [
        Cost("two steps of a small Llama on CPU-XLA", plain["seconds"], audit["seconds"], limit),
        Cost("ViT-B/16 on meta, --meta", vit["step"], vit["audit"], limit_meta),
    ]
    if not show("Processor seconds of an audit", costs, ("step", "audit"), ".2f"):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
