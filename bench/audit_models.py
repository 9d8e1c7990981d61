"""The casts of third-party models, under stock wheels and under castoff's.

Audits a training step of small configurations of transformers' Llama, BERT, ViT, T5 and GPT-2, with random
weights, in bfloat16, under autocast and in XlaFullyShardedDataParallel (bench/workers/audited_models.py), in an
environment with stock wheels and in one with patched wheels; there also with what castoff offers to those
that ask. --write puts the table between the two marks in docs/audit.md, and casts and bytes into
bench/measured/casts_of_models.json, from which bench/chart.py draws; --check compares, and exits with 1 if they
differ. Either way each conversion must be traced to its IR line, and what castoff removes must be gone.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from shared import compact_json
from shared.pages import replaced
from shared.side_by_side import environment_with

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(__file__).parent / "workers" / "audited_models.py"
DOCUMENT = ROOT / "docs" / "audit.md"
MEASURED = ROOT / "bench" / "measured" / "casts_of_models.json"
BEGIN = "<!-- casts of models: made by bench/audit_models.py --write -->"
END = "<!-- casts of models: end -->"

CLASSES = (
    ("why", "explicit"),
    ("why", "autocast"),
    ("why", "autograd engine"),
    ("why", "op's math type"),
    ("why", "optimizer"),
    ("exactness", "lossy narrowing"),
    ("exactness", "exact round trip"),
    ("exactness", "lossy round trip"),
)

Found = dict[str, dict[str, Any]]


def audited(python: Path, *arguments: str) -> Found:
    """What bench/workers/audited_models.py finds in an environment."""
    command = [str(python), str(PROGRAM), *arguments]
    done = subprocess.run(command, env=environment_with(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def check_claims(stock: Found, patched: Found, topics: Found) -> None:
    """What must hold of the models whatever the numbers are."""
    for name in stock:
        for found in (stock, patched, topics):
            totals = found[name]
            assert totals["traced"] == totals["conversions"] > 0, f"{name}: a conversion without an IR line"
        assert "wider product" not in patched[name]["by_why"], name
        assert "exact round trip" not in patched[name]["by_exactness"], name
        for topic in ("native-mul", "exact-casts", *(() if name.endswith("autocast") else ("wide-weight-grad",))):
            assert topics[name]["by_topic"].get(topic, 0) == 0, f"{name}: casts that {topic} should have removed"
        assert topics[name]["casts"] <= min(patched[name]["casts"], stock[name]["casts"]), name


def table(stock: Found, patched: Found, topics: Found) -> str:
    """A row for each model and mode; in each cell the three counts, or one if they are the same."""
    head = ["model", "as", "casts", "KiB moved", *(name for _, name in CLASSES)]
    lines = [BEGIN, "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in stock:
        totals = [found[name] for found in (stock, patched, topics)]
        cells = [[total["casts"] for total in totals], [round(total["bytes"] / 1024) for total in totals]]
        cells += [[total[f"by_{by}"].get(key, 0) for total in totals] for by, key in CLASSES]
        lines.append(f"| {name} | {' | '.join(map(cell, cells))} |")
    return "\n".join([*lines, "", END])


def measured(stock: Found, patched: Found, topics: Found) -> str:
    """Casts and bytes of each step, as JSON."""
    columns = {"stock": stock, "castoff": patched, "opted in": topics}
    rows = {
        name: {column: {key: found[name][key] for key in ("casts", "bytes")} for column, found in columns.items()}
        for name in stock
    }
    return compact_json.dumps(rows, depth=1)


def cell(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else " → ".join(f"{count:,}" for count in counts)


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels and transformers.")],
    patched: Annotated[Path, typer.Option(help="Python of one with patched wheels and transformers.")],
    write: Annotated[bool, typer.Option("--write", help="Write docs/audit.md and bench/measured/.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare with docs/audit.md and bench/measured/.")] = False,
) -> None:
    """.venv/bin/python bench/audit_models.py --stock STOCK/bin/python --patched PATCHED/bin/python --check

    Count the casts of models of transformers.
    """
    jobs = [(stock,), (patched,), (patched, "topics")]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        found = list(pool.map(lambda job: audited(*job), jobs))
    check_claims(*found)
    new = table(*found)
    if not write and not check:
        print(new)
        return
    wanted = {DOCUMENT: replaced(DOCUMENT.read_text(), BEGIN, END, new), MEASURED: measured(*found)}
    for path, text in wanted.items():
        if write:
            path.write_text(text)
        elif path.read_text() != text:
            raise SystemExit(f"{path.name} does not say what the wheels do: run bench/audit_models.py --write")


if __name__ == "__main__":
    typer.run(main)
