"""What every stage that touches the world is handed."""

from __future__ import annotations

from dataclasses import dataclass

from castoff.cache import Cache
from castoff.console import Console
from castoff.run import Runner


@dataclass(frozen=True)
class Context:
    """The means of a build.

    Attributes:
        cache: Where things are kept between builds.
        runner: Runs other programs.
        console: Tells the user.
    """

    cache: Cache
    runner: Runner
    console: Console
