"""The commands on upstream's tree: check it out, write edits back, run its tests on the patched wheels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from castoff.builder.environments import Environments
from castoff.builder.manifest import read_manifest
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.interpreter import find_interpreter
from castoff.core.places import ROOT
from castoff.model.pin import load_pin
from castoff.model.topics import Topic, load_topics, select
from castoff.upstream.checkout import checkout, update
from castoff.upstream.refresh import refresh
from castoff.upstream.upstream_tests import SUITES, Runs, check, compare, counts, install_tools


def update_checkout(
    pin_name: str, project: str, folder: Path, console: Console, root: Path = ROOT, *, unproven: bool = False
) -> None:
    """Make a checkout of a project, or bring the one that is there up to date with the topics.

    Args:
        unproven: Whether it has the hunks on C++ that nobody has proven, too.

    Raises:
        CastoffError: It cannot be brought up to date. It is unchanged.
    """
    if not (folder / ".git").exists():
        make_checkout(pin_name, project, folder, console, root, unproven=unproven)
        return
    pin = load_pin(root / "pins", pin_name)
    topics = _topics(root, pin.name, unproven)
    with command_context(console) as context, console.step("apply", "the topics that changed"):
        update(pin, project, topics, folder, context)
    console.result(f"{folder}: up to date", {"out": str(folder)})


def make_checkout(
    pin_name: str, project: str, folder: Path, console: Console, root: Path = ROOT, *, unproven: bool = False
) -> None:
    """Make a checkout of a project, and print its folder.

    Args:
        unproven: Whether it gets the hunks on C++ that nobody has proven, too.

    Raises:
        CastoffError: It cannot be made. The folder is removed.
    """
    pin = load_pin(root / "pins", pin_name)
    topics = _topics(root, pin.name, unproven)
    with command_context(console) as context:
        origin = checkout(pin, project, topics, folder, context)
    own = [topic.key for topic in topics if topic.project == project]
    hoped = [topic.key for topic in topics if topic.project == project and topic.takes_unproven]
    data: dict[str, object] = {"out": str(folder), "origin": origin.kind, "topics": own, "unproven": hoped}
    said = f"{folder}: {project} {pin.upstream(project).version} from {origin.about}, {len(own)} topics"
    if hoped:
        said += f"\nwith hunks that nobody has proven, of {', '.join(hoped)}"
    console.result(said, data)


def _topics(root: Path, pin: str, unproven: bool) -> tuple[Topic, ...]:
    topics = select(load_topics(root / "patches"), pin)
    return tuple(topic.with_unproven(pin) for topic in topics) if unproven else topics


def refresh_topic(name: str, folder: Path, console: Console, root: Path = ROOT) -> None:
    """Write an edited checkout back into a topic, and print what changed.

    Raises:
        CastoffError: It cannot be written back. The topic is unchanged.
    """
    with command_context(console) as context:
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
    built: Path,
    *,
    stock: Path | None,
    patched: Path | None,
    source: Path | None,
    known: Path | None,
    whole: bool,
    indexes: Sequence[str],
    console: Console,
    root: Path = ROOT,
) -> None:
    """Run upstream's own tests on stock and on patched wheels, and print how the outcomes compare.

    Args:
        built: The output folder with the patched wheels and their manifest.
        stock: The interpreter of an environment with the stock wheels; one is made if not given.
        patched: The interpreter of one with the patched wheels, likewise.
        source: A checkout with the tests; one is made if not given.
        known: A folder where the outcomes on stock wheels are kept for the next comparison.
        whole: Whether to run all suites, and not only the quick ones.
        indexes: Package indexes to fetch upstream's wheels from, besides pip's own.

    Raises:
        UpstreamTestsError: A test has different outcomes on the two.
        CastoffError: The tests cannot be run.
    """
    recorded = read_manifest(built / "manifest.json")
    pin = load_pin(root / "pins", recorded.pin)
    with command_context(console) as context:
        with context.cache.lock("upstream-tests"), context.cache.scratch("upstream-tests") as scratch:
            if source is None:
                source = scratch / "torch"
                checkout(pin, "torch", (), source, context)
            with console.step("install", "stock and patched wheels"):
                environments = Environments(context, indexes, root)
                only = {project: wheel.base_sha256 for project, wheel in recorded.wheels.items()}
                interpreter = find_interpreter(recorded.python, context.runner)
                stock = stock or environments.stock(pin, interpreter, only=only)
                patched = patched or environments.patched(built.absolute())
                tools = install_tools(stock, context)
            with console.step("tests", f"upstream's own, of torch {pin.torch.version}"):
                runs = Runs(source.absolute() / "test", tools, context.runner)
                suites = [suite for suite in SUITES if whole or suite.quick]
                comparisons = compare(stock.absolute(), patched.absolute(), suites, runs, console, known=known)
        check(comparisons)
    failing = sum(counts(comparison.stock).get("failed", 0) for comparison in comparisons)
    tests = sum(len(comparison.stock) for comparison in comparisons)
    console.result(
        f"{tests} of upstream's tests have the same outcome on stock and patched wheels; {failing} fail on both",
        {"tests": tests, "failing": failing, "differences": 0},
    )
