"""The cost of an audit, in processor seconds beside those of the step that it audits.

Runs audited_seconds.py in an environment with patched wheels and transformers: two steps of a small Llama on
CPU-XLA and their audit, which traces them and computes nothing; and a step of ViT-B/16 on the meta device and its
--meta audit, the least of some rounds. Exit status 1 if an audit takes more than its limit times the step's seconds:
of Llama it took 0.2 of them, as XLA compiles nothing in it, of ViT 1.5.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from side_by_side import run, run_all

PROGRAM = Path(__file__).with_name("audited_seconds.py")


@dataclass(frozen=True)
class Result:
    title: str  # what is audited
    step: float
    audit: float
    ratio: float
    limit: float

    @property
    def is_good(self) -> bool:
        return self.ratio <= self.limit


def main(
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels and transformers.")],
    limit: Annotated[float, typer.Option(help="The highest ratio allowed for Llama.")] = 1.0,
    limit_meta: Annotated[float, typer.Option(help="The highest ratio allowed for ViT-B/16 on meta.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """.venv/bin/python bench/audit_speed.py --patched PATCHED/bin/python

    Compare the processor seconds of steps with those of their audits.
    """
    ways = [("llama", "plain"), ("llama", "audit"), ("vit",)]
    plain, audit, vit = run_all([(patched, PROGRAM, *way) for way in ways], run)
    seconds = [
        ("two steps of a small Llama on CPU-XLA", plain["seconds"], audit["seconds"], limit),
        ("ViT-B/16 on meta, --meta", vit["step"], vit["audit"], limit_meta),
    ]
    results = [Result(title, step, audit, audit / step, most) for title, step, audit, most in seconds]
    if as_json:
        print(json.dumps({"results": [asdict(result) for result in results]}))
    else:
        table = Table("", "step", "audit", "ratio", "limit", title="Processor seconds of an audit")
        for result in results:
            numbers = f"{result.step:.2f}", f"{result.audit:.2f}", f"{result.ratio:.2f}", f"{result.limit:.2f}"
            table.add_row(result.title, *numbers)
        Console().print(table)
    if not all(result.is_good for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
