"""The release number, which CHANGELOG.md states."""

from __future__ import annotations

import re
from pathlib import Path

from castoff.core.errors import ChangelogError

_RELEASE = re.compile(r"^## \[castoff\.([1-9]\d*)\] - \d{4}-\d{2}-\d{2}$", re.MULTILINE)


def release_number(changelog: Path) -> int:
    """Return the number of the newest release.

    Args:
        changelog: A Keep-a-Changelog file with headings ``## [castoff.N] - YYYY-MM-DD``,
            newest first.

    Returns:
        N of the first such heading.

    Raises:
        ChangelogError: There is no file or no such heading.
    """
    expected = f"{changelog.name} has a heading like '## [castoff.1] - 2026-11-21'"
    try:
        text = changelog.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ChangelogError(
            "the release number is unknown",
            expected=expected,
            found=f"no file {changelog}",
            next_step="Restore CHANGELOG.md (git checkout CHANGELOG.md).",
        ) from error
    match = _RELEASE.search(text)
    if match is None:
        raise ChangelogError(
            "the release number is unknown",
            expected=expected,
            found="no such heading",
            next_step="Add the heading of the release that you are building.",
        )
    return int(match.group(1))
