from pathlib import Path

import pytest

from castoff.build import ROOT
from castoff.changelog import release_number
from castoff.errors import ChangelogError


def test_the_newest_release_counts(tmp_path: Path) -> None:
    path = tmp_path / "CHANGELOG.md"
    path.write_text("# C\n\n## [Unreleased]\n\n## [castoff.12] - 2026-12-01\n\n## [castoff.11] - 2026-11-21\n")
    assert release_number(path) == 12


@pytest.mark.parametrize(
    "text", ["", "## [Unreleased]\n", "## castoff.1 - 2026-11-21\n", "## [castoff.0] - 2026-11-21\n"]
)
def test_no_release_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "CHANGELOG.md"
    path.write_text(text)
    with pytest.raises(ChangelogError):
        release_number(path)


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match="unknown"):
        release_number(tmp_path / "CHANGELOG.md")


def test_our_own_changelog_names_a_release() -> None:
    assert release_number(ROOT / "CHANGELOG.md") >= 1
