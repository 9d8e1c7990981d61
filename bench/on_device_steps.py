"""Steps whose operators stock wheels hand to the CPU: their time and their graphs, on CPU-XLA, on both wheels.

A step of a small segmentation net, a token of a sampling loop, samplers, counts, a step with a CTC loss, and one with
grid_sample. Times are the median of each step's, in the soonest of some processes that alternate between the wheels; of
graphs it counts those that run in a step. --write puts the table into docs/on-device.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from shared.pages import put
from shared.side_by_side import run

WORKER = Path(__file__).parent / "workers" / "on_device_worker.py"
DOCUMENT = WORKER.parents[2] / "docs" / "on-device.md"
BEGIN = "<!-- steps: made by bench/on_device_steps.py --write -->\n"
END = "<!-- steps: end -->"


ROUNDS = 5

Steps = dict[str, dict[str, float]]


def soonest(runs: list[Steps]) -> Steps:
    return {name: min((run[name] for run in runs), key=lambda step: step["milliseconds"]) for name in runs[0]}


def table(stock: Steps, castoff: Steps) -> str:
    text = "\n| step | stock: graphs | ms | castoff: graphs | ms |\n|---|--:|--:|--:|--:|\n"
    for name in stock:
        cells = [f"{found[name]['graphs']:g} | {found[name]['milliseconds']:.2f}" for found in (stock, castoff)]
        text += f"| {name} | {' | '.join(cells)} |\n"
    return text + "\n"


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="The same with patched wheels.")],
    write: Annotated[bool, typer.Option("--write", help="Write the table of docs/on-device.md.")] = False,
) -> None:
    """.venv/bin/python bench/on_device_steps.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare steps whose operators stock wheels hand to the CPU.
    """
    rounds = [[run(python, WORKER, PJRT_DEVICE="CPU") for python in (stock, patched)] for _ in range(ROUNDS)]
    found = table(*(soonest(list(runs)) for runs in zip(*rounds, strict=True)))
    print(found)
    if write:
        put(DOCUMENT, BEGIN, END, BEGIN + found + END)


if __name__ == "__main__":
    typer.run(main)
