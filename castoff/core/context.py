"""The context of a command: its cache, its runner and its console."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from castoff.core.cache import Cache
from castoff.core.console import Console
from castoff.core.places import cache_root
from castoff.core.runner import Runner


@dataclass(frozen=True)
class Context:
    """What every stage needs that runs programs, reports or keeps files."""

    cache: Cache  # where things are kept between builds
    runner: Runner  # runs other programs
    console: Console  # reports to the user


@contextmanager
def command_context(console: Console) -> Iterator[Context]:
    """Provide the context of a command that builds nothing. Its logs are kept if it fails: the error names them."""
    logs = Path(tempfile.mkdtemp(prefix="castoff-logs-"))
    yield Context(Cache(cache_root(), console), Runner(logs, console), console)
    shutil.rmtree(logs)
