"""The record of the programs: what each does on stock wheels and on castoff's. It needs neither torch nor a package.

``bench/measured/programs.json`` has a line for each: the hash of the program, stock's outcome and castoff's.
``bench/programs.py --write`` writes it.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SUBJECTS = Path(__file__).resolve().parent / "subjects"
MEASURED = SUBJECTS.parents[2] / "bench" / "measured" / "programs.json"

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


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The modules of programs, by subject."""
    return {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SUBJECTS.glob("*.py"))}


def functions(subject: str) -> dict[str, ast.FunctionDef]:
    """The programs of a subject: its functions but for those whose names begin with an underscore."""
    found = (node for node in modules()[subject].body if isinstance(node, ast.FunctionDef))
    return {node.name: node for node in found if not node.name.startswith("_")}


def names() -> list[str]:
    """Every program, as subject/name."""
    return sorted(f"{subject}/{name}" for subject in modules() for name in functions(subject))


def node_of(name: str) -> ast.FunctionDef:
    """A program."""
    subject, function = name.split("/")
    return functions(subject)[function]


def code(name: str) -> str:
    """A program and what it uses of its module, without docstring, comments and layout."""
    module, program = modules()[name.split("/", maxsplit=1)[0]], copy.copy(node_of(name))
    program.body = program.body[1:]
    found: list[ast.stmt] = [program]
    for node in found:  # which grows
        used = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        found += [other for other in module.body if used & helpers(other) and other not in found]
    return "\n".join(map(ast.unparse, found))


def helpers(node: ast.stmt) -> set[str]:
    """The names of helpers and constants that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name} if node.name.startswith("_") else set()
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}


def digest(name: str) -> str:
    """What tells a program from its earlier forms: its code."""
    return hashlib.sha256(code(name).encode()).hexdigest()[:8]


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
