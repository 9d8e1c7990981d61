"""Samples that are made, in every operator that takes them, on both wheels.

special: zeros, infinities, NaN and the limits of each dtype, in every elementwise operator and reduction.
other: torch's samples in float32, of which one tensor has another dtype. What torch's CPU kernel refuses may be
computed as if all were promoted to one dtype, which is no difference, but not in another way.

--write runs tests/operators/sweep.py with these samples in both environments. What differs from torch's CPU kernels on
castoff's wheels goes, with its reason, to a record in bench/measured, and the page's part to docs/operators.md. --check
runs it on castoff's wheels, and fails where something differs that is not recorded, or something recorded is right;
one operator in four or eight, others each day, and all with CASTOFF_DAY=all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import operator_sweep
import typer
from operator_sweep import DOCUMENT, ROOT, Record
from shared.operator_reasons import OTHER, SPECIAL, Reason
from shared.pages import put


@dataclass(frozen=True)
class Kind:
    """A kind of samples: its record, and its part of the page."""

    name: str
    record: Path
    title: str
    reasons: tuple[Reason, ...]

    def marks(self) -> tuple[str, str]:
        return (
            f"<!-- {self.name} samples: made by bench/made_samples.py {self.name} --write -->",
            f"<!-- {self.name} samples: end -->",
        )

    def page(self, record: Record) -> str:
        begin, end = self.marks()
        parts = operator_sweep.reasons(record, f"### {self.title}", self.reasons)
        summary = operator_sweep.summary(record, record["on stock"])
        return "\n\n".join([begin, summary, parts[0], *(f"#{part}" for part in parts[1:]), end])

    def rows(self, keep: Path | None, wheels: str, python: Path, *options: str) -> list[operator_sweep.Row]:
        return operator_sweep.kept(keep, f"{self.name}-{wheels}", python, "--kind", self.name, *options)

    def write(self, keep: Path | None, stock: Path, patched: Path) -> None:
        on_stock, found = self.rows(keep, "stock", stock), self.rows(keep, "castoff", patched)
        record = self._record_of(on_stock, found)
        self.record.write_text(operator_sweep.text_of(record), encoding="utf-8")
        put(DOCUMENT, *self.marks(), self.page(record))

    def _record_of(self, stock: list[operator_sweep.Row], castoff: list[operator_sweep.Row]) -> Record:
        return {
            "operators": len({row["op"] for row in castoff}),
            "calls": sum(len(row["chosen"]) for row in castoff if "chosen" in row),
            "on stock": operator_sweep.counts(
                {key: row["kind"] for key, row in operator_sweep.differing(stock).items()}
            ),
            "differs": operator_sweep.lines_of(operator_sweep.differing(castoff), self.reasons),
        }

    def read(self) -> Record:
        record: Record = json.loads(self.record.read_text(encoding="utf-8"))
        return record

    def check(self, keep: Path | None, patched: Path) -> None:
        """Raises SystemExit if anything is not as recorded."""
        record = self.read()
        if self.page(record) not in DOCUMENT.read_text(encoding="utf-8"):
            raise SystemExit(f"docs/operators.md is not as {self.record.relative_to(ROOT)} says: run with --write")
        rows = self.rows(keep, "castoff", patched, "--of-the-day")
        problems = operator_sweep.unlike(record, rows)
        operator_sweep.refuse(problems, self.record, f"bench/made_samples.py {self.name} --write")


MEASURED = ROOT / "bench" / "measured"
KINDS = {
    "special": Kind("special", MEASURED / "special_values.json", "What still differs with special values", SPECIAL),
    "other": Kind("other", MEASURED / "other_dtypes.json", "What still differs with a tensor in another dtype", OTHER),
}


def main(
    kind: Annotated[str, typer.Argument(help=f"Of samples: {' or '.join(KINDS)}.")],
    *,
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    stock: Annotated[Path | None, typer.Option(help="The same with stock wheels; for --write.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put what is found into the record and the page.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare what is found with the record.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="A folder for what the sweeps find; what is there is not run again.")
    ] = None,
) -> None:
    """.venv/bin/python bench/made_samples.py special --patched PATCHED/bin/python --check

    Show whether operators give for made samples what torch gives.
    """
    if kind not in KINDS:
        raise SystemExit(f"expected a kind of samples, {' or '.join(KINDS)}, found {kind}")
    if write:
        if stock is None:
            raise SystemExit("expected --stock beside --write, found none")
        KINDS[kind].write(keep, stock, patched)
    elif check:
        KINDS[kind].check(keep, patched)
    else:
        print(KINDS[kind].page(KINDS[kind].read()))


if __name__ == "__main__":
    typer.run(main)
