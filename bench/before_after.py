"""What each topic changes in the IR, from the wheels themselves.

Runs the example.py of every topic in an environment with stock wheels and in one with patched wheels. --write makes
docs/before-after.md, which has what each program prints; ci/site_hooks.py puts the programs in for the site. README.md
has one topic's whole, at its top. --check compares both with what is there and exits with 1 if they differ; on stock
wheels it runs the programs that on_stock.py does not know. --only runs the program of one topic, and takes what the
document has of the others. Where environments of pin 2.1 are given, the program of pytorch/xla#3718 is made anew as
well, at the document's end.
"""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from shared import on_stock
from shared.pages import replaced

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "ir"))
from other_process import completed, forked  # noqa: E402

README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "before-after.md"
FIRST = "graph-identity"
BEGIN_FIRST = "<!-- the first example: made by bench/before_after.py --write -->"
END_FIRST = "<!-- the first example: end -->"
BEGIN_2_1 = "<!-- before and after on 2.1: made by bench/before_after.py --write -->"
END_2_1 = "<!-- before and after on 2.1: end -->"
SECTION = re.compile(
    r"## .*\n\n\[.*\]\(\.\./(?P<program>[^)]+)\)\n\n```diff\n(?P<printed>.*?)\n```",
    re.DOTALL,
)
EXAMPLE_2_1 = ROOT / "patches" / "torch" / "data-setter" / "example-2.1.py"


def run(python: Path, example: Path) -> str:
    """What a program prints: in a fork, unless it sets a variable that is read while torch_xla is imported."""
    start = completed if "CASTOFF_TRACE_FOR" in example.read_text() else forked
    try:
        printed: str = start(example, python=str(python), PJRT_DEVICE="CPU").stdout
    except AssertionError as error:
        raise SystemExit(f"{python} {example} failed:\n{error}") from None
    return printed.strip()


@dataclass(frozen=True)
class Example:
    """A topic's program and what it printed."""

    path: Path  # from the root
    title: str  # what the program is about, one sentence
    program: str  # its lines
    stock: str  # what it printed under stock wheels
    patched: str  # what it printed under patched wheels

    @classmethod
    def of(cls, path: Path, stock: str, patched: str) -> Example:
        """Read the program in `path`, which printed `stock` and `patched`."""
        text = path.read_text()
        title = text.split('"""')[1].strip()
        marked = text.split("# README: begin\n")[1].split("# README: end\n")[0].rstrip(" ")
        program = textwrap.dedent(marked).strip()
        return cls(path.relative_to(ROOT), title, program, stock, patched)

    @property
    def topic(self) -> Path:
        """The folder of the topic, from the root."""
        return self.path.parent

    @classmethod
    def of_section(cls, section: str) -> Example:
        """Read a section of the document, as `section` wrote it."""
        match = SECTION.fullmatch(section.strip())
        assert match is not None, f"{DOCUMENT.name} has a section of another form:\n{section}"
        lines = match["printed"].split("\n")
        stock, patched = ("\n".join(line[1:] for line in lines if not line.startswith(other)) for other in "+-")
        return cls.of(ROOT / match["program"], stock, patched)

    def section(self) -> str:
        """Its section of the document."""
        return f"## [`{self.topic.name}`](../{self.topic})\n\n{self.compared()}"

    def compared(self) -> str:
        """The title, with a link to the program, and what that printed: lines of both wheels once."""
        stock, patched = self.stock.split("\n"), self.patched.split("\n")
        _, _, _, *lines = difflib.unified_diff(stock, patched, n=len(stock), lineterm="")
        printed = "\n".join(line.rstrip() for line in lines)
        return f"[{self.title}](../{self.path})\n\n```diff\n{printed}\n```"

    def whole(self) -> str:
        """The program and what it printed, before and after."""
        shown = f"{self.title}\n\n```python\n{self.program}\n```"
        return f"{shown}\n\nStock:\n```\n{self.stock}\n```\n\ncastoff:\n```\n{self.patched}\n```"


def document(examples: list[Example], on_2_1: str) -> str:
    """The document, with ``on_2_1``, the part of pin 2.1, at its end."""
    head = "# Before and after\n\nWhat each topic's program prints: `-` under stock wheels, `+` under castoff's, "
    head += "the rest under both. Made by `bench/before_after.py --write`."
    return "\n\n".join([head, *(example.section() for example in examples), f"## On torch 2.1\n\n{on_2_1}\n"])


def whole(examples: list[Example], topic: str) -> str:
    return next(example.whole() for example in examples if example.topic.name == topic)


def present_examples() -> list[Example]:
    """Read the examples that the document has."""
    sections = re.split(r"(?m)^(?=## )", DOCUMENT.read_text())[1:]
    return [Example.of_section(section) for section in sections if section.startswith("## [`")]


def run_all(paths: list[Path], stock: Path, patched: Path, known: dict[Path, str]) -> list[Example]:
    """Run each program under both wheels; under stock ones unless it is known what it prints there."""
    before = known | {path: run(stock, path) for path in paths if path not in known}
    return [Example.of(path, before[path], run(patched, path)) for path in paths]


def known_on_stock() -> dict[Path, str]:
    """What the document says that programs print on stock wheels, where it is known to be true."""
    said = {ROOT / example.path: example.stock for example in present_examples()}
    return {path: text for path, text in said.items() if path.exists() and on_stock.is_known(path, text)}


def main(
    *,
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    stock_2_1: Annotated[Path | None, typer.Option("--stock-2.1", help="The same, of pin 2.1.")] = None,
    patched_2_1: Annotated[Path | None, typer.Option("--patched-2.1", help="The same, of pin 2.1.")] = None,
    only: Annotated[str | None, typer.Option(metavar="TOPIC", help="Run the program of this topic only.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the result into README.md and docs/.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the result with README.md and docs/.")] = False,
) -> None:
    """.venv/bin/python bench/before_after.py --stock STOCK/bin/python --patched PATCHED/bin/python --check

    Show what each topic changes in the IR.
    """
    paths = sorted(ROOT.glob("patches/*/*/example.py"), key=lambda path: (path.parent.name, path))
    if only and not any(path.parent.name == only for path in paths):
        raise SystemExit(f"expected a topic with an example.py, found {only!r}")
    known = known_on_stock() if check else {}
    examples = run_all([path for path in paths if only in (None, path.parent.name)], stock, patched, known)
    if write:
        on_stock.remember({ROOT / example.path: example.stock for example in examples})
    if only:
        examples += [example for example in present_examples() if example.topic.name != only]
        examples.sort(key=lambda example: (example.topic.name, example.path))
    if stock_2_1 and patched_2_1:
        [example] = run_all([EXAMPLE_2_1], stock_2_1, patched_2_1, {})
        on_2_1 = f"{BEGIN_2_1}\n\n{example.compared()}\n\n{END_2_1}"
    else:
        present = DOCUMENT.read_text()
        on_2_1 = present[present.index(BEGIN_2_1) : present.index(END_2_1) + len(END_2_1)]
    if not write and not check:
        print(document(examples, on_2_1))
        return
    readme = replaced(
        README.read_text(), BEGIN_FIRST, END_FIRST, f"{BEGIN_FIRST}\n\n{whole(examples, FIRST)}\n\n{END_FIRST}"
    )
    wanted = {README: readme, DOCUMENT: document(examples, on_2_1)}
    for path, text in wanted.items():
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path.name} does not say what the wheels do: run bench/before_after.py --write")


if __name__ == "__main__":
    typer.run(main)
