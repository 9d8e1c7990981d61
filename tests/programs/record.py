"""The record of the programs: what each does on stock wheels and on castoff's. It needs neither torch nor a package.

``bench/measured/programs.json`` has a line for each: the hash of the program, stock's outcome and castoff's.
``bench/programs.py --write`` writes it.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEASURED = HERE.parent.parent / "bench" / "measured" / "programs.json"

RIGHT = "right"
ORDER = (RIGHT, "raises", "accepts", "wrong", "hangs", "dies")
"""From the best outcome to the worst: an error at the call is better than a wrong result without one."""


@dataclass(frozen=True)
class Recorded:
    """What a program did when it had this hash."""

    digest: str
    stock: str
    castoff: str

    @property
    def worse(self) -> bool:
        """Whether castoff's wheels do worse than the stock ones."""
        return rank(self.castoff) > rank(self.stock)


def rank(kind: str) -> int:
    """The place of an outcome in ORDER."""
    return ORDER.index(kind.split(maxsplit=1)[0])


def names() -> list[str]:
    """Every program, as subject/name."""
    return sorted(str(path.relative_to(HERE).with_suffix("")) for path in HERE.glob("[a-z]*/*.py"))


def digest(name: str) -> str:
    """What tells a program from its earlier forms: its code, without docstring, comments and layout."""
    tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    if ast.get_docstring(tree) is not None:
        del tree.body[0]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:8]


def read() -> dict[str, Recorded]:
    """The record."""
    if not MEASURED.exists():
        return {}
    return {name: Recorded(*line) for name, line in json.loads(MEASURED.read_text(encoding="utf-8")).items()}


def problems(rows: Iterable[dict[str, str]], record: dict[str, Recorded]) -> list[str]:
    """What rows of castoff's wheels do not do as recorded."""
    found = []
    for row in rows:
        name, kind = row["name"], row["kind"]
        known = record.get(name)
        if known is None or known.digest != digest(name):
            found.append(f"{name}: not in the record as it is now; run bench/programs.py --write")
        elif rank(kind) > rank(known.stock):
            found.append(f"{name}: {kind}: {row['detail']}; worse than on stock wheels: {known.stock}")
        elif kind != known.castoff:
            found.append(f"{name}: {kind}: {row['detail']}; recorded is: {known.castoff}")
    return found
