"""The release, which CHANGELOG.md states."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from castoff.core.errors import ChangelogError

_UNRELEASED = re.compile(r"^## \[Unreleased\]\n+### ", re.MULTILINE)
_RELEASE = re.compile(r"^## \[castoff\.([1-9]\d*)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)


def release_version(changelog: Path) -> str:
    """Return the version of what this tree builds: "2" of release castoff.2, "3.dev0" of a tree after it.

    Args:
        changelog: A Keep-a-Changelog file with headings ``## [castoff.N] - YYYY-MM-DD``,
            newest first. Before them ``## [Unreleased]`` may stand; with changes, it makes a version of its own.

    Returns:
        N of the first such heading, or N + 1 and ".dev0".

    Raises:
        ChangelogError: There is no file or no such heading.
    """
    newest = _newest(changelog)
    unreleased = _UNRELEASED.search(newest.string, 0, newest.start())
    return f"{int(newest[1]) + 1}.dev0" if unreleased else newest[1]


def release_date(changelog: Path) -> date:
    """Return the date of the newest release.

    Args:
        changelog: As of `release_version`.

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
