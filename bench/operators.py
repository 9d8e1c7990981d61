"""The table of docs/operators.md: programs of one operator each on XLA, judged beside torch's CPU kernels."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated

import typer
from side_by_side import run, run_all

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "bench" / "operator_programs.py"
DOCUMENT = ROOT / "docs" / "operators.md"
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"


def groups() -> dict[str, list[str]]:
    """The programs, as the other file lists them; importing it would need torch."""
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    [value] = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROGRAMS"
    ]
    found: dict[str, list[str]] = ast.literal_eval(value)
    return found


def cell(verdict: str) -> str:
    """A verdict without the numbers, which differ from machine to machine."""
    if verdict == "same":
        return "right"
    kind, _, rest = verdict.partition(": ")
    if kind in ("dtype", "shape"):
        return f"**wrong** {kind}: {rest}"
    return f"**wrong** {kind}" if not kind.startswith("raises") else "raises"


def table(stock: dict[str, str], patched: dict[str, str]) -> str:
    parts = []
    for title, programs in groups().items():
        rows = [
            f"| `{program.replace('|', chr(92) + '|')}` | {cell(stock[program])} | {cell(patched[program])} |"
            for program in programs
        ]
        parts.append("\n".join([f"### {title}", "", "| program | stock | castoff |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    write: Annotated[bool, typer.Option("--write", help="Put the table into docs/operators.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare it with docs/operators.md.")] = False,
) -> None:
    """.venv/bin/python bench/operators.py --stock STOCK/bin/python --patched PATCHED/bin/python --check

    Show which programs return what torch returns.
    """
    text = table(*run_all([(stock, PROGRAM), (patched, PROGRAM)], run))
    if not write and not check:
        print(text)
        return
    present = DOCUMENT.read_text(encoding="utf-8")
    head, rest = present.split(BEGIN)
    wanted = f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}"
    if write:
        DOCUMENT.write_text(wanted, encoding="utf-8")
    elif present != wanted:
        raise SystemExit("docs/operators.md does not say what the wheels do: run bench/operators.py --write")


if __name__ == "__main__":
    typer.run(main)
