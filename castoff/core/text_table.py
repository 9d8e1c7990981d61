"""Tables as plain text. With nothing but the standard library: audits write them beside a user's torch, too."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (columns, *rows))
