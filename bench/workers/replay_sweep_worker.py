"""Runs random training programs traced and replayed, and prints a line of JSON for each: what became of it.

ENVIRONMENT/bin/python bench/workers/replay_sweep_worker.py 3 17 40        (numbers of programs of replay_programs.py)
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from replay_programs import CALLS, Program
from torch.utils import _pytree as pytree


def run(program: Program, replayed: bool) -> tuple[list[Any], list[dict]]:
    """Results and state after 20 calls, on the CPU, and the reports of the replayed steps."""
    step, evaluation = program.step, program.evaluation
    if replayed:
        step, evaluation = torch_xla.replay(step), torch_xla.replay(evaluation)
    torch_xla.sync()
    xm.set_rng_state(1234)
    results = []
    for i, (x, labels) in enumerate(program.batches()):
        results.append(step(x, labels))
        if not replayed:
            torch_xla.sync()
        if program.scheduler is not None:
            program.scheduler.step()
        if program.evaluates and i % 4 == 3:
            program.model.eval()
            results.append(evaluation(x))
            if not replayed:
                torch_xla.sync()
            program.model.train()
    leaves = pytree.tree_leaves((results, program.state()))
    reports = [step.report(), evaluation.report()] if replayed else []
    return [leaf.detach().cpu() for leaf in leaves], reports


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the bit, but for the sign of a zero; NaN is NaN."""
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


def is_rounding(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two differ by what a few float32 roundings can have become in 20 calls."""
    return torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-5, equal_nan=True)


def outcome(number: int) -> dict[str, Any]:
    """ "equal" to the bit, "rounded", "different", or "refused" with the reason; and how many calls were replayed."""
    expected, _ = run(Program(number), replayed=False)
    try:
        found, reports = run(Program(number), replayed=True)
    except RuntimeError as error:
        if "cannot be replayed" not in str(error):
            raise
        return {"number": number, "outcome": "refused", "reason": str(error).split("cannot be replayed: ")[1]}
    different = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if not same(a, b)]
    replayed = reports[0]["replayed"]
    if different:
        rounded = all(is_rounding(expected[i], found[i]) for i in different)
        what = "rounded" if rounded else "different"
        return {"number": number, "outcome": what, "leaves": different[:8], "replayed": replayed}
    return {"number": number, "outcome": "equal", "replayed": replayed, "of": CALLS}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(outcome(int(argument))), flush=True)
