"""The release number, which CHANGELOG.md states."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from castoff.core.errors import ChangelogError

_RELEASE = re.compile(r"^## \[castoff\.([1-9]\d*)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)


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
    return int(_newest(changelog)[1])


def release_date(changelog: Path) -> date:
    """Return the date of the newest release.

    Args:
        changelog: As of `release_number`.

    Raises:
        ChangelogError: There is no file or no such heading.
    """
    return date.fromisoformat(_newest(changelog)[2])


def _newest(changelog: Path) -> re.Match[str]:
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
    return match
