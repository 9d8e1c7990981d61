"""The lock file of a step: its casts and narrow accumulations by phase, module and reason.

It is text to keep beside the program. It has no line numbers, sizes or versions, and modules that differ only in
numbers are one: edits that change no cast change no line of it.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from castoff.audit.casts import PHASES
from castoff.audit.report import Report, alike

FIRST_LINE = "# castoff dtypes 1"
_ABOUT = "# phase | module | from → to | exactness | reason | operation | how many. Made by castoff audit --write-lock."


def lock_text(report: Report) -> str:
    """Return the lock file of a report."""
    return "\n".join([FIRST_LINE, _ABOUT, *_lines(report)]) + "\n"


def lock_differences(path: Path, report: Report) -> list[str]:
    """Return the lines in which a step differs from its lock file: "-" that the file has, "+" that the step has.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a lock file, or of another format.
    """
    text = path.read_text(encoding="utf-8").splitlines()
    if text[:1] != [FIRST_LINE]:
        raise ValueError(f"expected {FIRST_LINE!r} in the first line; found {(text[:1] or [''])[0]!r}")
    locked = [line for line in text if line and not line.startswith("#")]
    changes = difflib.unified_diff(locked, list(_lines(report)), n=0, lineterm="")
    return [f"{change[0]} {change[1:]}" for change in list(changes)[2:] if change.startswith(("-", "+"))]


def check_lock(path: Path, report: Report) -> list[str]:
    """Return the violations of a lock file: none, or one with the lines that differ.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a lock file, or of another format.
    """
    differences = lock_differences(path, report)
    if not differences:
        return []
    return ["\n".join([f"the step is not as in {path.name} (-), it has (+):", *differences])]


def _lines(report: Report) -> Iterator[str]:
    counts = Counter(
        (
            *(PHASES.index(cast.phase), alike(cast.module) or "(outside modules)"),
            *(f"{cast.source} → {cast.target}", cast.exactness, cast.why, cast.op or "(unknown)"),
        )
        for cast in report.floating
    )
    sums = Counter(
        (
            *(PHASES.index(found.phase), alike(found.module) or "(outside modules)"),
            *(found.dtype, "narrow accumulation", found.kind, found.op or "(unknown)"),
        )
        for found in report.accumulations
    )
    for (phase, *others), count in [*sorted(counts.items()), *sorted(sums.items())]:
        yield " | ".join([PHASES[phase], *others, str(count)])
