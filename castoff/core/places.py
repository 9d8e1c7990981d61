"""The paths of castoff's own tree and of its cache."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The tree of castoff: pins, patches and the changelog are beside this package."""


def cache_root() -> Path:
    """Return the cache's folder: CASTOFF_CACHE, or a folder in the user's cache folder."""
    own = os.environ.get("CASTOFF_CACHE")
    return Path(own).absolute() if own else xdg_cache() / "castoff"


def xdg_cache() -> Path:
    """Return the user's cache folder, which other programs use too."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    return Path(xdg) if xdg else Path.home() / ".cache"
