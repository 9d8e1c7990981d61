"""What bench/measured/training.json says: means over seeds, with bands, and the tables of the page.

For training.py and chart.py, whose environments have nothing in common but Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared import compact_json

MEASURED = Path(__file__).resolve().parents[1] / "measured" / "training.json"

SEEDS = range(8)
T_95 = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Student's t for 95 %, by the number of seeds: a band is this many standard errors to each side of the mean."""

NAMES = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "masters": "bfloat16, MasterWeights",
    "buffer": "bfloat16, float32 buffers and copies by hand",
    "wide": "bfloat16, wide_grads, MasterWeights",
}
GRADIENT_NAMES = {
    "float32": "float32",
    "bfloat16": "bfloat16, with or without MasterWeights",
    "buffer": "bfloat16, float32 buffers by hand",
    "wide": "bfloat16, wide_grads",
}
LAST = 5
"""The steps at the end whose losses' mean is "the loss at the end"."""

Band = tuple[float, float]  # the mean, and what the band has to each side
Record = dict[str, Any]


def read(path: Path = MEASURED) -> Record:
    empty: Record = {"losses": {}, "gradients": {}, "tpu": {}}
    return empty | (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})


def write(record: Record, path: Path = MEASURED) -> None:
    """Replaces the file at once, so that a run that is stopped leaves a whole one."""
    new = path.with_suffix(".new")
    new.write_text(compact_json.dumps(record, depth=4, sort_keys=True), encoding="utf-8")
    new.replace(path)


def band(values: Sequence[float]) -> Band:
    """The mean and its 95 % band, of one value for each seed."""
    if len(values) not in T_95:
        raise ValueError(f"expected the values of {min(T_95)} to {max(T_95)} seeds, found {len(values)}")
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, T_95[len(values)] * math.sqrt(variance / len(values))


def loss_bands(record: Record, kind: str) -> list[Band]:
    """Of the loss of each step."""
    runs = [record["losses"][kind][str(seed)] for seed in SEEDS]
    return [band(values) for values in zip(*runs, strict=True)]


def difference_bands(record: Record, kind: str) -> list[Band]:
    """Of the loss of each step minus float32's of the same seed."""
    runs = [zip(*(record["losses"][k][str(seed)] for k in (kind, "float32")), strict=True) for seed in SEEDS]
    return [band(values) for values in zip(*([a - b for a, b in run] for run in runs), strict=True)]


def at_the_end(record: Record, kind: str) -> tuple[Band, Band]:
    """The loss at the end, and that minus float32's of the same seed."""

    def ends(kind: str) -> list[float]:
        return [sum(record["losses"][kind][str(seed)][-LAST:]) / LAST for seed in SEEDS]

    own, exact = ends(kind), ends("float32")
    return band(own), band([a - b for a, b in zip(own, exact, strict=True)])


def error_band(record: Record, against: str, kind: str, number: int, part: str = "all") -> Band:
    """Of a gradient's error: see gradient_errors of training_gpt.py."""
    return band([errors[against][kind][str(number)][part] for errors in record["gradients"].values()])


def parts(record: Record) -> list[str]:
    """The parts of the model, from the input to the output."""
    found = record["gradients"]["0"]["network"]["float32"]["64"]
    return sorted(name for name in found if name.startswith("block"))


def disorder(errors: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[str]:
    """What is wrong with the order of the errors of gradients after 64 micro-batches, part by part.

    Args:
        errors: as of gradient_errors of training_gpt.py, its numbers as strings.
    """
    found = []
    for against, kinds in (("network", ("float32", "wide", "bfloat16")), ("sum", ("wide", "buffer", "bfloat16"))):
        # The activations are most of the error against a float64 network.
        least = 1.005 if against == "network" else 2.0
        for part in errors[against]["bfloat16"]["64"]:
            values = [errors[against][kind]["64"][part] for kind in kinds]
            for (low, a), (high, b) in zip(
                zip(kinds, values, strict=True), list(zip(kinds, values, strict=True))[1:], strict=False
            ):
                if not a * least <= b:
                    found.append(f"{against}, {part}: expected {high} at least {least} × {low}, found {b} and {a}")
    return found


def tables(record: Record) -> dict[str, str]:
    """The page's tables, each under the name of its place."""
    return {"losses": loss_table(record), "gradients": gradient_table(record), "tpu": tpu_table(record)}


def loss_table(record: Record) -> str:
    lines = ["| training | loss at the end | minus float32's |", "|---|---|---|"]
    for kind, name in NAMES.items():
        (loss, around), (more, of_that) = at_the_end(record, kind)
        difference = "–" if kind == "float32" else f"{more:+.4f} ± {of_that:.4f}"
        lines.append(f"| {name} | {loss:.3f} ± {around:.3f} | {difference} |")
    return "\n".join(lines)


def gradient_table(record: Record) -> str:
    numbers = ("1", "4", "16", "64")
    lines = [
        f"| gradients | against | {' | '.join(numbers)} micro-batches |",
        "|---|---" + "|---" * len(numbers) + "|",
    ]
    for against, said in (("network", "a float64 network"), ("sum", "an exact sum")):
        for kind, name in GRADIENT_NAMES.items():
            if (against, kind) != ("sum", "float32"):
                means = [error_band(record, against, kind, int(n))[0] for n in numbers]
                values = [f"{mean:.1e}" if mean else "0" for mean in means]
                lines.append(f"| {name} | {said} | {' | '.join(values)} |")
    return "\n".join(lines)


def step_cycles(programs: dict[str, dict[str, int]], micro_batches: int = 64) -> int:
    return micro_batches * programs["micro-step"]["cycles"] + programs["optimizer step"]["cycles"]


def tpu_table(record: Record) -> str:
    lines = [
        "| TPU | training | cycles: micro-step | optimizer step | 64 and one | of bfloat16's | MiB: held | temporary |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for topology, kinds in sorted(record["tpu"].items()):
        for kind, name in ((kind, name) for kind, name in NAMES.items() if kind in kinds):
            micro, step = (kinds[kind][program] for program in ("micro-step", "optimizer step"))
            whole = step_cycles(kinds[kind])
            figures = [micro["cycles"], step["cycles"], whole]
            held = max(program["argument bytes"] for program in (micro, step)) / 2**20
            temporary = max(program["temporary bytes"] for program in (micro, step)) / 2**20
            ratio = whole / step_cycles(kinds["bfloat16"])
            cells = [*(f"{figure:,}" for figure in figures), f"{ratio:.3f}", f"{held:,.0f}", f"{temporary:,.0f}"]
            lines.append(f"| {topology.partition(':')[0]} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
