import datetime as dt
import re
from pathlib import Path

import pytest
from packaging.version import Version

from castoff.core.errors import ChangelogError
from castoff.core.places import ROOT
from castoff.model.changelog import release_version


def test_the_newest_release_counts(tmp_path: Path) -> None:
    path = tmp_path / "CHANGELOG.md"
    path.write_text("# C\n\n## [Unreleased]\n\n## [castoff.12] - 2026-12-01\n\n## [castoff.11] - 2026-11-21\n")
    assert release_version(path) == "12"


def test_changes_since_a_release_make_a_version_between_two(tmp_path: Path) -> None:
    path = tmp_path / "CHANGELOG.md"
    path.write_text("# C\n\n## [Unreleased]\n\n### Added\n\n- a thing\n\n## [castoff.12] - 2026-12-01\n")
    assert release_version(path) == "13.dev0"
    assert Version("2.9.0+castoff.12") < Version(f"2.9.0+castoff.{release_version(path)}")
    assert str(Version(release_version(path))) == release_version(path)  # a version of castoff's own package, too


@pytest.mark.parametrize(
    "text", ["", "## [Unreleased]\n", "## castoff.1 - 2026-11-21\n", "## [castoff.0] - 2026-11-21\n"]
)
def test_no_release_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "CHANGELOG.md"
    path.write_text(text)
    with pytest.raises(ChangelogError):
        release_version(path)


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match="unknown"):
        release_version(tmp_path / "CHANGELOG.md")


def test_our_own_is_in_the_form_of_keep_a_changelog() -> None:
    """Newest first, without a gap; each release has a date, and kinds of changes that the form knows."""
    path = ROOT / "CHANGELOG.md"
    headings = [line for line in path.read_text().splitlines() if line.startswith("## ")]
    releases = [re.fullmatch(r"## \[castoff\.(\d+)\] - (\d{4}-\d{2}-\d{2})", line) for line in headings]
    if headings[0] == "## [Unreleased]":
        del releases[0]
    assert all(releases), headings
    numbers = [int(release[1]) for release in releases if release]
    dates = [dt.date.fromisoformat(release[2]) for release in releases if release]
    assert numbers == list(range(len(numbers), 0, -1))
    assert dates == sorted(dates, reverse=True)
    assert release_version(path) in (str(numbers[0]), f"{numbers[0] + 1}.dev0")
    assert f"`2.9.0+castoff.{release_version(path)}`" in path.read_text().split("\n## ")[0]
    kinds = {line.removeprefix("### ") for line in path.read_text().splitlines() if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
