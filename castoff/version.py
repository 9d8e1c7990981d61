"""The version of castoff's own package, for those who install it beside a torch."""

from __future__ import annotations

from pathlib import Path

from castoff.model.changelog import release_number

VERSION = str(release_number(Path(__file__).parent.parent / "CHANGELOG.md"))
