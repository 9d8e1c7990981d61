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
from castoff.upstream_tests import SUITES, Runs, check, compare, counts, install_tools


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


def compare_upstream_tests(
    pin_name: str,
    pythons: tuple[Path, Path],
    *,
    folder: Path | None,
    known: Path | None,
    whole: bool,
    console: Console,
    root: Path = ROOT,
) -> None:
    """Run upstream's own tests on stock and on patched wheels and say how they compare.

    Args:
        pin_name: The pin's name.
        pythons: The interpreters of the environments with the stock wheels and with the patched ones.
        folder: A checkout to run them from; one is made, and removed again, if not given.
        known: A folder that keeps the outcomes on stock from one comparison to the next.
        whole: Whether to run all suites, and not only the quick ones.
        console: Shows how it goes.
        root: The tree with pins and patches.

    Raises:
        UpstreamTestsError: A test ends otherwise on the two.
        CastoffError: The tests cannot be run.
    """
    pin = load_pin(root / "pins", pin_name)
    with means(console) as context:
        with tempfile.TemporaryDirectory(prefix="castoff-") as scratch:
            if folder is None:
                folder = Path(scratch) / "torch"
                checkout(pin, "torch", (), folder, context)
            tools = install_tools(pythons[0], context)
            with console.step("tests", f"upstream's own, of torch {pin.torch.version}, on stock and on patched wheels"):
                runs = Runs(folder.absolute() / "test", tools, context.runner)
                suites = [suite for suite in SUITES if whole or suite.quick]
                comparisons = compare(*pythons, suites, runs, console, known=known)
        check(comparisons)
    failing = sum(counts(comparison.stock).get("failed", 0) for comparison in comparisons)
    tests = sum(len(comparison.stock) for comparison in comparisons)
    console.result(
        f"{tests} of upstream's tests end alike on stock and on patched wheels, {failing} of them failing on both",
        {"tests": tests, "failing": failing, "differences": 0},
    )


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
