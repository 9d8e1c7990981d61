"""What a maintainer does in a checkout: make one, write it back. ``cli`` is the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from castoff.build import ROOT
from castoff.cache import Cache, cache_root
from castoff.checkout import checkout
from castoff.console import Console
from castoff.context import Context
from castoff.pin import load_pin
from castoff.refresh import refresh
from castoff.run import Runner
from castoff.topics import load_topics, select


def make_checkout(pin_name: str, project: str, folder: Path, console: Console, root: Path = ROOT) -> None:
    """Make a checkout of a project, and say where it is.

    Args:
        pin_name: The pin's name.
        project: "torch" or "torch_xla".
        folder: Where it goes.
        console: Shows how it goes.
        root: The tree with pins and patches.

    Raises:
        CastoffError: It cannot be made; there is none then.
    """
    pin = load_pin(root / "pins", pin_name)
    topics = select(load_topics(root / "patches"), pin.name)
    with means(console) as context:
        origin = checkout(pin, project, topics, folder, context)
    own = [topic.key for topic in topics if topic.project == project]
    data: dict[str, object] = {"out": str(folder), "origin": origin.kind, "topics": own}
    console.result(f"{folder}: {project} {pin.upstream(project).version} from {origin.about}, {len(own)} topics", data)


def refresh_topic(name: str, folder: Path, console: Console, root: Path = ROOT) -> None:
    """Write an edited checkout back into a topic, and say what changed.

    Args:
        name: The topic.
        folder: The checkout.
        console: Shows how it goes.
        root: The tree with patches.

    Raises:
        CastoffError: It cannot be written back; the topic is as it was.
    """
    with means(console) as context:
        done = refresh(name, folder, load_topics(root / "patches"), context)
    what = "\n".join(f"  {path}" for path in done.changed) or "  nothing: it was up to date"
    data: dict[str, object] = {
        "topic": done.topic,
        "files": list(done.files),
        "hunks": list(done.hunks),
        "changed": list(done.changed),
        "replaced": done.replaced,
    }
    console.result(f"patches/{done.topic}:\n{what}", data)


@contextmanager
def means(console: Console) -> Iterator[Context]:
    """Lend what stages are handed; the logs stay if something fails."""
    logs = Path(tempfile.mkdtemp(prefix="castoff-logs-"))
    yield Context(Cache(cache_root(), console), Runner(logs, console), console)
    _remove(logs)


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
