"""What each topic changes in the IR, from the wheels themselves: the README's before and after.

Runs the example.py of every topic in an environment with stock wheels and in one with patched
wheels. --write puts the result between the two marks in README.md, --check compares it with what
stands there and exits with 1 if it differs.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- before and after: made by bench/before_after.py --write -->"
END = "<!-- before and after: end -->"


def run(python: Path, example: Path) -> str:
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "PYTHONPATH": str(ROOT / "tests" / "ir")}
    result = subprocess.run([str(python), str(example)], env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{python} {example} failed:\n{result.stderr}")
    return result.stdout.strip()


def section(example: Path, before: str, after: str) -> str:
    text = example.read_text()
    title = text.split('"""')[1].strip()
    program = text.split("# README: begin\n")[1].split("# README: end\n")[0].strip()
    fence = "```"
    return "\n".join(
        [
            f"**`{example.parent.name}`.** {title}",
            "",
            f"{fence}python\n{program}\n{fence}",
            "",
            f"Stock:\n{fence}\n{before}\n{fence}",
            "",
            f"castoff:\n{fence}\n{after}\n{fence}",
        ]
    )


def main(
    stock: Annotated[Path, typer.Option(help="Python of an environment with stock wheels.")],
    patched: Annotated[Path, typer.Option(help="Python of an environment with patched wheels.")],
    write: Annotated[bool, typer.Option("--write", help="Put the result into README.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the result with README.md.")] = False,
) -> None:
    """Show what each topic changes in the IR."""
    examples = sorted(ROOT.glob("patches/*/*/example.py"), key=lambda path: path.parent.name, reverse=True)
    jobs = [(python, example) for example in examples for python in (stock, patched)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        texts = list(pool.map(lambda job: run(*job), jobs))
    sections = [section(e, *texts[2 * i : 2 * i + 2]) for i, e in enumerate(examples)]
    block = "\n".join([BEGIN, "", "\n\n".join(sections), "", END])
    if not write and not check:
        print(block)
        return
    readme = README.read_text()
    head, rest = readme.split(BEGIN)
    current = head + block + rest.split(END)[1]
    if write:
        README.write_text(current)
    elif current != readme:
        raise SystemExit("README.md does not say what the wheels do: run bench/before_after.py --write")


if __name__ == "__main__":
    typer.run(main)
