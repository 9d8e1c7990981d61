"""What tracing a training step of real models costs, on stock wheels and on castoff's with every topic on.

Models of transformers, timm and torchvision (bench/model_zoo.py), in float32: a step of forward, backward and AdamW,
and a forward pass without gradients. The cost is the processor time of the process from the first operator to the
call of `torch_xla.sync()`, when nothing is being executed, and that of the main thread within the call: what the host
does before the device can start. The smallest of several steps counts; processes of the two environments take turns,
and of each the smallest counts.

--check measures the models of the day, and fails where training takes more than LIMIT times stock's. --write puts the
table into docs/speed.md and its sentence into README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from before_after import replaced
from side_by_side import run

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from slices import slice_of_day  # noqa: E402

WORKER = Path(__file__).with_name("model_tracing_worker.py")
MODELS = (
    *(f"torchvision/{name}" for name in ("mobilenet_v3_small", "shufflenet_v2_x0_5")),
    *(f"timm/{name}" for name in ("test_convnext", "test_efficientnet", "test_resnet", "test_vit")),
    *(f"transformers/{name}" for name in ("bart", "bert", "cohere", "electra", "falcon", "gemma3_text", "gpt2")),
    *(f"transformers/{name}" for name in ("gpt_neox", "llama", "mistral", "opt", "qwen3", "t5", "vit")),
)
LIMIT = 1.0
ROUNDS = 3
PARTS = 5
KINDS = ("training", "evaluation")
Cost = dict[str, float]  # in ms, by kind
Rows = dict[str, tuple[Cost, Cost]]  # of stock and castoff, by model


def measured(name: str, stock: Path, patched: Path) -> tuple[Cost, Cost]:
    """The costs of a model; once more where castoff's training looks dearer."""
    found: tuple[list[Cost], list[Cost]] = ([], [])
    costs: list[Cost] = []
    for number in range(ROUNDS):
        if number and costs[1]["training"] < LIMIT * costs[0]["training"]:
            break
        for each, python in zip(found, (stock, patched), strict=True):
            each.append(run(python, WORKER, name))
        costs = [{kind: min(cost[kind] for cost in each) for kind in KINDS} for each in found]
    shown = ", ".join(f"{kind} {costs[0][kind]:.1f} ms, {costs[1][kind]:.1f} ms" for kind in KINDS)
    print(f"{name}: {shown}", file=sys.stderr, flush=True)
    return costs[0], costs[1]


def of_stock(rows: Rows, kind: str) -> tuple[float, float, str]:
    """The median and the largest of castoff's costs ÷ stock's, and whose that is."""
    ratios = {name: ours[kind] / theirs[kind] for name, (theirs, ours) in rows.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    return median(ratios.values()), ratios[worst], worst.split("/")[1]


def sentence(rows: Rows) -> str:
    typical, largest, worst = of_stock(rows, "training")
    forward, largest_forward, worst_forward = of_stock(rows, "evaluation")
    return (
        f"Tracing a training step of {len(rows)} real models with AdamW takes {typical:.2f} of stock's time on the "
        f"host in the median, and {largest:.2f} in the worst case ({worst}); a forward pass without gradients takes "
        f"{forward:.2f}, and {largest_forward:.2f} in the worst case ({worst_forward})"
    )


def table(rows: Rows) -> str:
    lines = [
        f"{sentence(rows)}.",
        "",
        "| model | training, stock, ms | castoff, ms | of stock's | forward, stock, ms | castoff, ms | of stock's |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, (old, new) in sorted(rows.items()):
        cells = (f"{old[kind]:.1f} | {new[kind]:.1f} | {new[kind] / old[kind]:.2f}" for kind in KINDS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def put(page: Path, text: str) -> None:
    begin, end = "<!-- tracing: made by bench/model_tracing.py --write -->\n", "<!-- tracing: end -->"
    page.write_text(replaced(page.read_text(encoding="utf-8"), begin, end, begin + text + "\n" + end), encoding="utf-8")


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="The same with patched wheels.")],
    check: Annotated[
        bool, typer.Option("--check", help="Measure the models of the day, and fail above the limit.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Put the result into README.md and docs/speed.md.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Measure this model; may be repeated.")] = None,
) -> None:
    """.venv/bin/python bench/model_tracing.py --stock STOCK/bin/python --patched PATCHED/bin/python --check

    Measure what tracing a training step of real models costs.
    """
    names = only or (slice_of_day(MODELS, PARTS) if check else MODELS)
    rows = {name: measured(name, stock, patched) for name in names}
    print(table(rows))
    if write:
        put(
            ROOT / "README.md",
            f"**What it costs on the host:** {sentence(rows)} ([docs/speed.md]"
            "(docs/speed.md#host-time)). The IR and HLO of a step in which no topic is used are stock's.",
        )
        put(ROOT / "docs" / "speed.md", f"\n{table(rows)}\n")
    dearer = [
        f"{name}: {ours['training']:.1f} ms, stock {theirs['training']:.1f}"
        for name, (theirs, ours) in rows.items()
        if ours["training"] > LIMIT * theirs["training"]
    ]
    if check and dearer:
        raise SystemExit(f"expected at most {LIMIT} of stock's time, found more:\n" + "\n".join(dearer))


if __name__ == "__main__":
    typer.run(main)
