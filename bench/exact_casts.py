"""What exact-casts, native-mul and all topics together cost in the tracing of a transformer's step, in instructions.

Traces the steps of tests/ir/small_transformer.py in an environment with stock wheels and in one with patched
wheels, under callgrind: under autocast, where exact-casts has casts to look at, and in bfloat16, where native-mul
overrides every product and is not used; and both with all topics, of which native-attention makes the graph smaller
and values makes it larger. For a TPU, where unflattened-matmul looks for the linears that attention written by hand
reads, a Llama's layer with such attention. Exit status 1 if one takes more than stock's.

Needs valgrind and g++.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from shared import callgrind
from shared.costs import Cost, show
from shared.side_by_side import all_but, run_all

PROGRAM = Path(__file__).parent / "workers" / "transformer_tracing.py"


# What a step of transformer_tracing.py shows with these two topics alone, or with all.
ALONE = {
    "autocast": "autocast: exact-casts has casts to look at",
    "bfloat16": "bfloat16: native-mul is not asked for",
}
TOGETHER = {"autocast": "autocast: all topics", "bfloat16": "bfloat16: all topics"}
EAGER = {"served": "eager attention for a TPU, without gradients", "trained": "eager attention for a TPU"}
FOR_TPU = {"CASTOFF_TRACE_FOR": "TPU"}


def measure(stock: Path, patched: Path) -> list[Cost]:
    """Count in both environments."""
    alone = {"CASTOFF_DISABLE": all_but("exact-casts", "native-mul")}
    jobs = [(stock, {}), (patched, alone), (patched, {}), (stock, {}, "eager"), (patched, FOR_TPU, "eager")]
    theirs, ours, all_topics, theirs_eager, ours_eager = run_all(jobs, count)
    costs = [
        Cost(title, theirs[step], counts[step], 1)
        for steps, counts in ((ALONE, ours), (TOGETHER, all_topics))
        for step, title in steps.items()
    ]
    return costs + [Cost(title, theirs_eager[step], ours_eager[step], 1) for step, title in EAGER.items()]


def count(python: Path, environment: dict[str, str], *kinds: str) -> dict[str, int]:
    return callgrind.count_parts(python, PROGRAM, *(kinds or tuple(TOGETHER)), **environment)


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
) -> None:
    """.venv/bin/python bench/exact_casts.py --stock STOCK/bin/python --patched PATCHED/bin/python

    Compare the tracing of a transformer's training step under stock and patched wheels.
    """
    if not show("Instructions of tracing a training step", measure(stock, patched)):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
