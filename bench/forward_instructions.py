"""What a forward pass without gradients costs the host, in instructions, on stock wheels and on castoff's.

Of single operators, and of real models (bench/workers/model_zoo.py) in float32: the instructions from the first
operator to the call of `torch_xla.sync()`, when nothing is being executed. They are counted by callgrind, so that other
work on the machine does not count. Needs valgrind.

--check counts the models of the day, and fails where one takes more than LIMIT times stock's. --write puts the tables
into docs/speed.md; of operators those that take more than DEAR times stock's, each of which has its reason in REASONS.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from model_tracing import MODELS, of_stock, put_table
from shared.callgrind import count_parts

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from slices import slice_of_day  # noqa: E402

WORKER = Path(__file__).parent / "workers" / "forward_instructions_worker.py"
CALLS = 20  # of each operator
PARTS = 10
LIMIT, DEAR = 1.01, 1.05  # the same program varies by half a percent
INFINITE = "that of -inf alone is -inf"
NARROW = "computed in float32 and rounded once, as on CPU and CUDA"
REASONS = {
    "add, mixed dtypes": "the narrower operand is converted first, as torch promotes",
    "amax": INFINITE,
    "argmax": "the first NaN is the largest element",
    "argmin": "the first NaN is the smallest element",
    "batch_norm, training": "the running variance is unbiased",
    "contiguous of transposed": "a copy, where stock returns the view",
    "copy_": "which tensors have one buffer is noted, so that none is donated",
    "cross_entropy": "no one-hot matrices on the device",
    "floor_divide, int64": "exact, where stock divides float32",
    "floor_divide, int64 by a number": "exact, where stock divides float32",
    "full": "numbers of int64 and bool keep their values",
    "gelu": "far below 0 on CPU-XLA, erf's error times x; not on a TPU",
    "gelu, bfloat16": NARROW,
    "max of a dimension": INFINITE,
    "max_pool2d": "whether the pool is dilated is asked first",
    "mean, bfloat16": NARROW,
    "softmax, bfloat16": NARROW,
}
Rows = dict[str, tuple[int, int]]  # of stock and castoff


def counted_on_both(stock: Path, patched: Path, kind: str, rest: tuple[str, ...]) -> Rows:
    def count(python: Path) -> dict[str, int]:
        least: dict[str, int] = {}
        for part, number in count_parts(python, WORKER, kind, *rest).items():
            name = part.partition("|")[0]
            least[name] = min(number, least.get(name, number))
        return least

    with ThreadPoolExecutor() as pool:
        theirs, ours = pool.map(count, (stock, patched))
    return {name: (theirs[name], ours[name]) for name in theirs if name != "nothing"}


def ratio(row: tuple[int, int]) -> float:
    return row[1] / row[0]


def table_of_models(rows: Rows) -> str:
    lines = [
        f"A forward pass of {len(rows)} real models without gradients takes {of_stock(rows, 'instructions')}.",
        "",
        "| model | stock, million instructions | castoff | of stock's |",
        "|---|--:|--:|--:|",
    ]
    for name, row in sorted(rows.items()):
        lines.append(f"| {name} | {row[0] / 1e6:.2f} | {row[1] / 1e6:.2f} | {ratio(row):.2f} |")
    return "\n".join(lines)


def table_of_operators(rows: Rows) -> str:
    dear = {name: row for name, row in rows.items() if ratio(row) > DEAR}
    lines = [
        f"Of {len(rows)} single calls of operators in such a pass the median takes "
        f"{median(map(ratio, rows.values())):.3f} of stock's instructions; {len(dear)} take more than {DEAR}:",
        "",
        "| call | stock, thousand instructions | castoff | of stock's | why |",
        "|---|--:|--:|--:|---|",
    ]
    for name, row in sorted(dear.items(), key=lambda item: -ratio(item[1])):
        thousands = " | ".join(f"{count / CALLS / 1e3:.0f}" for count in row)
        lines.append(f"| {name} | {thousands} | {ratio(row):.2f} | {REASONS.get(name, '')} |")
    return "\n".join(lines)


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="The same with patched wheels.")],
    check: Annotated[
        bool, typer.Option("--check", help="Count the models of the day, and fail above the limit.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Put the tables into docs/speed.md.")] = False,
) -> None:
    """.venv/bin/python bench/forward_instructions.py --stock STOCK/bin/python --patched PATCHED/bin/python --check

    Count what tracing a forward pass without gradients costs.
    """
    names = tuple(slice_of_day(MODELS, PARTS)) if check else MODELS
    models = counted_on_both(stock, patched, "models", names)
    print(table_of_models(models))
    dearer = [f"{name}: {ratio(row):.3f}" for name, row in models.items() if ratio(row) > LIMIT]
    if not check:
        operators = counted_on_both(stock, patched, "operators", (str(CALLS),))
        print(table_of_operators(operators))
        dearer += [
            f"{name}: {ratio(row):.3f}, without a reason in REASONS"
            for name, row in operators.items()
            if ratio(row) > DEAR and name not in REASONS
        ]
        if write:
            text = f"\n{table_of_models(models)}\n\n{table_of_operators(operators)}\n"
            put_table(ROOT / "docs" / "speed.md", text, part="forward", script="forward_instructions")
    if dearer:
        raise SystemExit(f"expected at most {LIMIT} of stock's instructions, found more:\n" + "\n".join(dearer))


if __name__ == "__main__":
    typer.run(main)
