"""Zeros, infinities, NaN and the limits of each dtype, in every elementwise operator and reduction, on both wheels.

--write runs tests/operators/sweep.py --special in both environments. What differs from torch's CPU kernels on castoff's
wheels goes, with its reason, to bench/measured/special_values.json, and the page's part to docs/operators.md. --check
runs it on castoff's wheels, and fails where something differs that is not recorded, or something recorded is right;
one operator in four, others each day, and all with CASTOFF_DAY=all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import operator_sweep
import typer
from before_after import replaced
from operator_reasons import SPECIAL
from operator_sweep import DOCUMENT, ROOT, Record

MEASURED = ROOT / "bench" / "measured" / "special_values.json"
BEGIN = "<!-- special values: made by bench/special_values.py --write -->"
END = "<!-- special values: end -->"


def record_of(stock: list[operator_sweep.Row], castoff: list[operator_sweep.Row]) -> Record:
    return {
        "operators": len({row["op"] for row in castoff}),
        "calls": sum(len(row["chosen"]) for row in castoff if "chosen" in row),
        "differs": operator_sweep.lines_of(operator_sweep.differing(castoff), SPECIAL),
        "differs on stock": operator_sweep.lines_of(operator_sweep.differing(stock), None),
    }


def page(record: Record) -> str:
    parts = operator_sweep.reasons(record, "### What still differs with special values", SPECIAL)
    return "\n\n".join([BEGIN, operator_sweep.summary(record), parts[0], *(f"#{part}" for part in parts[1:]), END])


def main(
    *,
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    stock: Annotated[Path | None, typer.Option(help="The same with stock wheels; for --write.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put what is found into the record and the page.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare what is found with the record.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="A folder for what the sweeps find; what is there is not run again.")
    ] = None,
) -> None:
    """.venv/bin/python bench/special_values.py --patched PATCHED/bin/python --check

    Show for every elementwise operator and reduction whether special values give what torch gives.
    """
    if write:
        if stock is None:
            raise SystemExit("expected --stock beside --write, found none")
        on_stock = operator_sweep.kept(keep, "special-stock", stock, "--special")
        found = operator_sweep.kept(keep, "special-castoff", patched, "--special")
        record = record_of(on_stock, found)
        MEASURED.write_text(operator_sweep.text_of(record), encoding="utf-8")
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(replaced(document, BEGIN, END, page(record)), encoding="utf-8")
        return
    record = json.loads(MEASURED.read_text(encoding="utf-8"))
    if not check:
        print(page(record))
        return
    if page(record) not in DOCUMENT.read_text(encoding="utf-8"):
        raise SystemExit("docs/operators.md is not as bench/measured/special_values.json says: run with --write")
    rows = operator_sweep.kept(keep, "special-castoff", patched, "--special", "--of-the-day")
    operator_sweep.refuse(operator_sweep.unlike(record, rows), MEASURED, "bench/special_values.py --write")


if __name__ == "__main__":
    typer.run(main)
