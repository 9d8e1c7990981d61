"""Tables as plain text. Standard library only: audits use it in the environment of a user's torch."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (columns, *rows))
