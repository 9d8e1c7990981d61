"""The version of castoff's own package, for those who install it beside a torch."""

from __future__ import annotations

from castoff.core.places import ROOT
from castoff.model.changelog import release_version

VERSION = release_version(ROOT / "CHANGELOG.md")
