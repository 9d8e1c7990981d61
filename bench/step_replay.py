"""The host's milliseconds of steps: traced on stock and on castoff's wheels, replayed, and what jax.jit dispatches.

.venv/bin/python bench/step_replay.py --stock PYTHON --patched PYTHON --jax PYTHON [--write]

Each is the least of two processes (step_replay_worker.py), on CPU-XLA. JAX's is a compiled function of as many arrays
as the step's graph takes, which returns as many and is given their memory. `--write` puts the numbers into
bench/measured/step_replay.json, docs/step-replay.md and README.md; bench/chart.py draws them.
"""

import argparse
import json
from pathlib import Path

from shared import compact_json
from shared.pages import put
from shared.side_by_side import run

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench" / "measured" / "step_replay.json"
PAGE = ROOT / "docs" / "step-replay.md"
PROGRAM = ROOT / "bench" / "workers" / "step_replay_worker.py"
STEPS = {
    "gpt": "GPT of 12 layers, AdamW",
    "llama": "Llama of 8 layers, AdamW",
    "bert": "BERT of 8 layers with dropout, AdamW",
    "resnet": "ResNet-50, SGD with momentum",
    "decode": "a token of a decoder with a cache",
}
RUNS = 2
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
README = ROOT / "README.md"
BEGIN_README, END_README = "<!-- replay: made by bench/step_replay.py --write -->", "<!-- replay: end -->"


def table(record: dict) -> str:
    head = ["step", "traced, stock", "traced, castoff", "replayed", "of stock", "arrays", "`jax.jit`, as many arrays"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in record["steps"].items():
        stock, castoff, replayed = (row[how] for how in ("stock", "castoff", "replayed"))
        of_torch = f"{stock:.1f} | {castoff:.1f} | {replayed:.2f} | {replayed / stock:.2f}"
        lines.append(f"| {STEPS[name]} | {of_torch} | {row['arrays']} | {row['jax']:.2f} |")
    return "\n".join(lines)


def sentence(record: dict) -> str:
    """What the README says: the least, and the most."""
    shares = sorted((row["replayed"] / row["stock"], STEPS[name]) for name, row in record["steps"].items())
    (least, best), (most, worst) = shares[0], shares[-1]
    times = [row["replayed"] / row["jax"] for row in record["steps"].values()]
    return (
        f"On CPU-XLA a call takes {least:.2f} ({best}) to {most:.2f} ({worst}) of the host's time for stock's traced "
        f"step; `jax.jit` dispatches as many arrays {min(times):.1f} to {max(times):.1f} times faster."
    )


def measured(name: str, options: argparse.Namespace) -> dict:
    """A step's milliseconds, each of a process of its own, and the number of arrays."""
    preload = {"LD_PRELOAD": str(options.allocator)} if options.allocator else {}
    castoff, replayed = (run(options.patched, PROGRAM, name, how, **preload) for how in ("traced", "replayed"))
    if castoff["last"] != replayed["last"]:
        raise SystemExit(f"{name}: the last loss is {castoff['last']} traced and {replayed['last']} replayed")
    stock = run(options.stock, PROGRAM, name, "traced", **preload)
    jax = run(options.jax, PROGRAM, str(replayed["arrays"]), "jax", **preload)
    row = {"stock": stock["ms"], "castoff": castoff["ms"], "replayed": replayed["ms"], "jax": jax["ms"]}
    return {how: round(ms, 3) for how, ms in row.items()} | {"arrays": replayed["arrays"]}


def least(runs: list[dict]) -> dict:
    """The least of each number: processes differ by a factor of two in where their memory and threads are."""
    return {key: min(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--jax", type=Path, required=True, help="a Python with jax: castoff tpu environment has one")
    parser.add_argument("--only", choices=STEPS, action="append")
    parser.add_argument("--allocator", type=Path, metavar="LIBRARY", help="one to preload, such as tcmalloc")
    parser.add_argument("--write", action="store_true", help="not with --allocator")
    options = parser.parse_args()
    if options.write and options.allocator:
        parser.error("expected --write without --allocator: the pages have glibc's")
    record: dict = json.loads(RECORD.read_text()) if RECORD.exists() else {"steps": {}}
    for name in options.only or STEPS:
        record["steps"][name] = least([measured(name, options) for _ in range(RUNS)])
        print(name, record["steps"][name], flush=True)
    if options.write:
        RECORD.write_text(compact_json.dumps(record, depth=2), encoding="utf-8")
        new = f"{BEGIN}\n{table(record)}\n{END}"
        put(PAGE, BEGIN, END, new)
        new = f"{BEGIN_README}\n{sentence(record)}\n{END_README}"
        put(README, BEGIN_README, END_README, new)
    print(table(record))


if __name__ == "__main__":
    main()
