"""Parts of pages that scripts write, between two comments."""

from __future__ import annotations

from pathlib import Path


def replaced(text: str, begin: str, end: str, new: str) -> str:
    """``text`` with ``new`` in place of all from ``begin`` to ``end``."""
    head, rest = text.split(begin)
    return head + new + rest.split(end)[1]


def put(page: Path, begin: str, end: str, new: str) -> None:
    """Write ``new`` into a page, in place of all from ``begin`` to ``end``."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), begin, end, new), encoding="utf-8")
