"""What every stage that touches the world is handed."""

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
    """The means of a build."""

    cache: Cache  # where things are kept between builds
    runner: Runner  # runs other programs
    console: Console  # tells the user


@contextmanager
def command_context(console: Console) -> Iterator[Context]:
    """Lend the means of a command that builds nothing. Its logs stay if it fails: the error names them.

    Args:
        console: Tells the user.
    """
    logs = Path(tempfile.mkdtemp(prefix="castoff-logs-"))
    yield Context(Cache(cache_root(), console), Runner(logs, console), console)
    shutil.rmtree(logs)
