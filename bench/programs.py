"""Programs as people write them, on stock wheels and on castoff's, against the CPU.

--write runs those of tests/programs/ that are new or changed in both environments, and on castoff's wheels also those
that the record says are not right, or with --whole all. It writes bench/measured/programs.json and docs/programs.md.
--check runs all of them on castoff's wheels, and fails where something is not as recorded.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from shared.compact_json import dumps
from shared.pages import put
from shared.side_by_side import environment_with

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "programs"))
import record  # noqa: E402
from record import RIGHT, Recorded  # noqa: E402

RUNNER = ROOT / "tests" / "programs" / "runner.py"
DOCUMENT = ROOT / "docs" / "programs.md"
BEGIN = "<!-- programs: made by bench/programs.py --write -->"
END = "<!-- programs: end -->"
ISSUE = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d+)")

Row = dict[str, str]
Record = dict[str, Recorded]


def run(python: Path, names: list[str]) -> list[Row]:
    """The rows of programs in an environment."""
    if not names:
        return []
    command = [str(python), str(RUNNER), *names]
    done = subprocess.run(command, env=environment_with(), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{python} tests/programs/runner.py failed, see above")
    return [json.loads(line) for line in done.stdout.splitlines()]


def kinds(python: Path, names: list[str]) -> dict[str, str]:
    rows = run(python, names)
    for row in rows:
        if row["kind"] != RIGHT:
            print(f"{row['name']}: {row['kind']}: {row['detail']}", file=sys.stderr)
    return {row["name"]: row["kind"] for row in rows}


def renewed(old: Record, stock: Path | None, patched: Path, only: list[str], whole: bool) -> Record:
    """The record after programs were run again."""
    names = record.names()
    digests = {name: record.digest(name) for name in names}
    known = {name: line for name, line in old.items() if digests.get(name) == line.digest}
    chosen = [name for name in names if name in only or name.split("/")[0] in only]
    on_castoff = chosen or [name for name in names if whole or name not in known or known[name].castoff != RIGHT]
    on_stock = [name for name in chosen or names if name not in known]
    if on_stock and stock is None:
        raise SystemExit(f"expected --stock: {len(on_stock)} programs are new or changed, such as {on_stock[0]}")
    found, before = kinds(patched, on_castoff), kinds(stock, on_stock) if stock else {}
    lines = {}
    for name in names:
        past = known.get(name)
        ours, theirs = found.get(name, past and past.castoff), before.get(name, past and past.stock)
        if ours and theirs:
            lines[name] = Recorded(digests[name], theirs, ours)
    return lines


# ---- the page


def title(name: str) -> str:
    """What a program does, as its docstring says, with links to the issues that it names."""
    text = (
        " ".join((ast.get_docstring(record.node_of(name)) or "").split("\n\n")[0].split())
        .rstrip(".")
        .replace("|", "\\|")
    )
    return ISSUE.sub(lambda found: f"[{found[0]}](https://github.com/{found[1]}/issues/{found[2]})", text)


def link(name: str) -> str:
    return f"[`{name}`](../tests/programs/subjects/{name.split('/', maxsplit=1)[0]}.py)"


def table(names: list[str], lines: Record) -> str:
    rows = [f"| {title(name)} | {lines[name].stock} | {lines[name].castoff} | {link(name)} |" for name in names]
    return "\n".join(["| program | stock | castoff | file |", "|---|---|---|---|", *rows])


def page(lines: Record) -> str:
    subjects: dict[str, list[str]] = defaultdict(list)
    for name in lines:
        subjects[name.split("/")[0]].append(name)
    right = {side: sum(getattr(line, side) == RIGHT for line in lines.values()) for side in ("stock", "castoff")}
    silent = {
        side: sum(getattr(line, side).startswith("wrong") for line in lines.values()) for side in ("stock", "castoff")
    }
    counts = [
        f"| {subject} | {len(names)} | {sum(lines[n].stock == RIGHT for n in names)} "
        f"| {sum(lines[n].castoff == RIGHT for n in names)} |"
        for subject, names in sorted(subjects.items())
    ]
    mended = [name for name, line in lines.items() if line.stock != RIGHT == line.castoff]
    left = [name for name, line in lines.items() if line.castoff != RIGHT]
    parts = [
        f"Of {len(lines)} programs {right['stock']} are right on stock wheels and {right['castoff']} on castoff's; "
        f"silently wrong are {silent['stock']} and {silent['castoff']}.",
        "\n".join(["| subject | programs | right on stock | right on castoff |", "|---|---|---|---|", *counts]),
        f"## What castoff mends: {len(mended)}\n\n{table(mended, lines)}",
        f"## What is not right on castoff: {len(left)}\n\n{table(left, lines) if left else 'Nothing.'}",
    ]
    return "\n\n".join([BEGIN, *parts, END])


def main(
    *,
    patched: Annotated[Path | None, typer.Option(help="Python of an environment with patched wheels.")] = None,
    stock: Annotated[Path | None, typer.Option(help="The same with stock wheels; for new programs.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the record and the page.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare what is found with the record.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="With --write: run every program on castoff's wheels.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option(help="Run this program, or this subject; may be repeated.")] = None,
) -> None:
    """.venv/bin/python bench/programs.py --stock STOCK/bin/python --patched PATCHED/bin/python --write

    Show which programs do on XLA what they do on the CPU.
    """
    lines = record.read()
    if (write or check) and patched is None:
        raise SystemExit("expected --patched beside --write or --check, found none")
    if write:
        lines = renewed(lines, stock, patched, only or [], whole)
        record.MEASURED.write_text(dumps({name: list(vars(line).values()) for name, line in lines.items()}, 1))
        put(DOCUMENT, BEGIN, END, page(lines))
        worse = [name for name, line in lines.items() if line.worse]
        if worse:
            raise SystemExit(f"worse than on stock wheels: {', '.join(worse)}")
    elif check:
        found = record.problems(run(patched, only or record.names()), lines)
        if found:
            raise SystemExit("\n".join(found))
    else:
        print(page(lines))


if __name__ == "__main__":
    typer.run(main)
