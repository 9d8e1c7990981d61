"""The paths of castoff's own tree and of its cache."""

from __future__ import annotations

import os
from pathlib import Path

TREE = Path("castoff", "tree")
"""In castoff's wheel, the folder that stands for the tree."""

_BESIDE = Path(__file__).parents[2]

IN_PACKAGE = (_BESIDE / TREE).is_dir()
"""Whether this is castoff's wheel, installed, and not its tree."""

ROOT = _BESIDE / TREE if IN_PACKAGE else _BESIDE
"""The tree of castoff, or what the wheel has of it: pins, patches and the changelog."""


def cache_root() -> Path:
    """Return the cache's folder: CASTOFF_CACHE, or a folder in the user's cache folder."""
    own = os.environ.get("CASTOFF_CACHE")
    return Path(own).absolute() if own else xdg_cache() / "castoff"


def xdg_cache() -> Path:
    """Return the user's cache folder, which other programs use too."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    return Path(xdg) if xdg else Path.home() / ".cache"
