"""Upstream's own format and lint for staged files, with the settings of its tree.

That is .clang-format, and for Python ruff's settings (torch) or .style.yapf (torch_xla). The tools are those of our
lock file, which are newer than upstream's. torch's other tools (flake8, usort, clang-tidy, mypy) are not in it, and
the notes say so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from castoff.core.context import Context
from castoff.core.errors import StageError
from castoff.core.tools import tool
from castoff.model.topics import CPP_SUFFIXES, PYTHON_SUFFIXES
from castoff.upstream.repository import Repository

_ADDED = re.compile(r"(?m)^@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_NOT_RUN = "Not run here: upstream's flake8, usort, clang-tidy and mypy (lintrunner)."


def conform(tree: Path, new: Sequence[str], changed: Sequence[str], context: Context) -> Iterator[str]:
    """Give files upstream's format and lint them, by the settings in its tree.

    Args:
        new: The new files, which are formatted whole.
        changed: Upstream's files, of which only the changed lines count.

    Yields:
        Notes on what was done and what was not.

    Raises:
        StageError: The linter finds a problem that it cannot fix.
    """
    cpp = [path for path in new if path.endswith(CPP_SUFFIXES)]
    changed_cpp = [path for path in changed if path.endswith(CPP_SUFFIXES)]
    if cpp or changed_cpp:
        yield _format_cpp(tree, cpp, changed_cpp, context)
    python = [path for path in new if path.endswith(PYTHON_SUFFIXES)]
    changed_python = [path for path in changed if path.endswith(PYTHON_SUFFIXES)]
    if (tree / ".style.yapf").is_file():
        if python or changed_python:
            yield _format_python(tree, python, changed_python, context)
        return
    if python or changed_python:
        yield _lint_python(tree, python, changed_python, context)
    yield _NOT_RUN


def _format_cpp(tree: Path, new: Sequence[str], changed: Sequence[str], context: Context) -> str:
    if not (tree / ".clang-format").is_file():
        return "The tree has no .clang-format: the C++ was not formatted."
    program = tool("clang-format")
    if new:
        context.runner.run([program, "-i", "--style=file", *new], name="clang-format", cwd=tree)
    for path, ranges in _changed_lines(tree, changed, context).items():
        lines = [f"--lines={first}:{last}" for first, last in ranges]
        context.runner.run([program, "-i", "--style=file", *lines, path], name="clang-format", cwd=tree)
    version = context.runner.run([program, "--version"], name="clang-format").output.split()[2]
    return f"{len(new) + len(changed)} C++ files have the format of the tree's .clang-format (clang-format {version})."


def _changed_lines(tree: Path, paths: Sequence[str], context: Context) -> dict[str, list[tuple[int, int]]]:
    """Return for each file the first and the last line of each block of changed lines."""
    repository = Repository(tree, context.runner)
    found = {}
    for path in paths:
        diff = repository.git("diff", "--no-ext-diff", "--no-color", "-U0", "HEAD", "--", path)
        runs = [(int(start), int(count or 1)) for start, count in _ADDED.findall(diff)]
        found[path] = [(start, start + count - 1) for start, count in runs if count]
    return {path: ranges for path, ranges in found.items() if ranges}


def _format_python(tree: Path, new: Sequence[str], changed: Sequence[str], context: Context) -> str:
    yapf = tool("yapf")
    if new:
        context.runner.run([yapf, "--in-place", *new], name="yapf", cwd=tree)
    for path, ranges in _changed_lines(tree, changed, context).items():
        lines = [f"--lines={first}-{last}" for first, last in ranges]
        context.runner.run([yapf, "--in-place", *lines, path], name="yapf", cwd=tree)
    version = context.runner.run([yapf, "--version"], name="yapf").output.split()[1]
    return f"{len(new) + len(changed)} Python files have the format of the tree's .style.yapf (yapf {version})."


def _lint_python(tree: Path, new: Sequence[str], changed: Sequence[str], context: Context) -> str:
    if not (tree / "pyproject.toml").is_file():
        return "The tree has no pyproject.toml: the Python was not formatted."
    ruff = tool("ruff")
    if new:
        context.runner.run([ruff, "check", "--fix", "--quiet", "--exit-zero", *new], name="ruff-fix", cwd=tree)
        context.runner.run([ruff, "format", "--quiet", *new], name="ruff-format", cwd=tree)
    found = _findings(ruff, tree, [*new, *changed], context)
    repository = Repository(tree, context.runner)
    before = Counter[tuple[str, str, str]]()
    for path in changed:
        (tree / path).rename(tree / f"{path}.staged")
        try:
            repository.git("checkout", "--quiet", "HEAD", "--", path)
            before += _findings(ruff, tree, [path], context)
        finally:
            (tree / f"{path}.staged").replace(tree / path)
    ours = found - before
    if ours:
        raise StageError(
            "upstream's linter finds problems in the staged files",
            expected="`ruff check` with the tree's pyproject.toml finds nothing new",
            found="\n".join(f"{path}: {code} {message}" for path, code, message in sorted(ours)),
            next_step="Correct the topic's file, or add a [[replace]] to its upstream/stage.toml.",
        )
    version = context.runner.run([ruff, "--version"], name="ruff").output.split()[1]
    return f"{len(new) + len(changed)} Python files pass `ruff check` with the tree's pyproject.toml (ruff {version})."


def _findings(ruff: Path, tree: Path, paths: Sequence[str], context: Context) -> Counter[tuple[str, str, str]]:
    command: list[str | Path] = [ruff, "check", "--quiet", "--exit-zero", "--output-format=json", *paths]
    output = context.runner.run(command, name="ruff", cwd=tree).output
    # Warnings about settings that this version of ruff does not know may come first.
    rows = json.loads(output[output.index("[") :]) if "[" in output else []
    found = [(Path(row["filename"]), str(row["code"]), str(row["message"])) for row in rows]
    return Counter((path.relative_to(tree.resolve()).as_posix(), code, message) for path, code, message in found)
