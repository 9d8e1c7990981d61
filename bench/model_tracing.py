"""What tracing a training step of real models costs, on stock wheels and on castoff's with every topic on.

Models of transformers, timm and torchvision (bench/workers/model_zoo.py), in float32: forward, backward, AdamW. A
step's cost is the processor time of the process from the first operator to the call of `torch_xla.sync()`, when nothing
is being executed, and that of the main thread within the call: what the host does before the device can start. The
smallest of the steps of a process counts; processes of the two environments take turns, and of each the smallest
counts.

--check measures the models of the day, and fails where one takes more than LIMIT times stock's. --write puts the table
into docs/speed.md and its sentence into README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from shared.pages import put
from shared.side_by_side import run

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from slices import slice_of_day  # noqa: E402

WORKER = Path(__file__).parent / "workers" / "model_tracing_worker.py"
MODELS = (
    *(f"torchvision/{name}" for name in ("mobilenet_v3_small", "shufflenet_v2_x0_5")),
    *(f"timm/{name}" for name in ("test_convnext", "test_efficientnet", "test_resnet", "test_vit")),
    *(f"transformers/{name}" for name in ("bart", "bert", "cohere", "electra", "falcon", "gemma3_text", "gpt2")),
    *(f"transformers/{name}" for name in ("gpt_neox", "llama", "mistral", "opt", "qwen3", "t5", "vit")),
)
LIMIT = 1.0
ROUNDS = 3
PARTS = 5


def measured(name: str, stock: Path, patched: Path) -> tuple[float, float]:
    """The two costs of a model, in ms; of castoff once more where it looks dearer."""
    costs: list[list[float]] = [[], []]
    for number in range(ROUNDS):
        if number and min(costs[1]) < LIMIT * min(costs[0]):
            break
        for each, python in zip(costs, (stock, patched), strict=True):
            each.append(run(python, WORKER, name)["ms"])
    print(f"{name}: {min(costs[0]):.1f} ms, {min(costs[1]):.1f} ms", file=sys.stderr, flush=True)
    return min(costs[0]), min(costs[1])


def of_stock(rows: Mapping[str, tuple[float, float]], what: str) -> str:
    """Of models' costs on stock and castoff: "0.57 of stock's time on the host in the median, …"."""
    ratios = {name: ours / theirs for name, (theirs, ours) in rows.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    return (
        f"{median(ratios.values()):.2f} of stock's {what} on the host in the median, and {ratios[worst]:.2f} in the "
        f"worst case ({worst.split('/')[1]})"
    )


def sentence(rows: dict[str, tuple[float, float]]) -> str:
    return f"Tracing a training step of {len(rows)} real models with AdamW takes {of_stock(rows, 'time')}"


def table(rows: dict[str, tuple[float, float]]) -> str:
    lines = [
        f"{sentence(rows)}.",
        "",
        "| model | stock, ms | castoff, ms | of stock's |",
        "|---|--:|--:|--:|",
        *(f"| {name} | {old:.1f} | {new:.1f} | {new / old:.2f} |" for name, (old, new) in sorted(rows.items())),
    ]
    return "\n".join(lines)


def put_table(page: Path, text: str, part: str = "tracing", script: str = "model_tracing") -> None:
    begin, end = f"<!-- {part}: made by bench/{script}.py --write -->\n", f"<!-- {part}: end -->"
    put(page, begin, end, begin + text + "\n" + end)


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
        put_table(
            ROOT / "README.md",
            f"**What it costs on the host:** {sentence(rows)} ([docs/speed.md]"
            "(docs/speed.md#host-time)). The IR and HLO of a step in which no topic is used are stock's.",
        )
        put_table(ROOT / "docs" / "speed.md", f"\n{table(rows)}\n")
    dearer = [
        f"{name}: {ours:.1f} ms, stock {theirs:.1f}" for name, (theirs, ours) in rows.items() if ours > LIMIT * theirs
    ]
    if check and dearer:
        raise SystemExit(f"expected at most {LIMIT} of stock's time, found more:\n" + "\n".join(dearer))


if __name__ == "__main__":
    typer.run(main)
