"""Drift: check each topic against a newer upstream.

Two questions, both answered by trying. Does the topic still apply: its files and hunks are applied to the
newer tree, or on what a wheel has of it, with no fuzz. Is it upstream already: the topic's own tests run
on stock wheels of that release, and a test that fails on the stock wheels of our pins but passes there
shows that upstream has the behaviour.
"""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from castoff.build.apply import CHECKOUT_ONLY_SUFFIXES, Fit, try_topics
from castoff.build.environments import TEST_TOOLS
from castoff.build.fetch import fetch_release
from castoff.build.package_index import find_release
from castoff.core.console import Console
from castoff.core.context import Context, command_context
from castoff.core.errors import CheckoutError, CommandError, FetchError
from castoff.core.pipconfig import current_uv_environment
from castoff.core.places import ROOT
from castoff.core.runner import environment_for_tests
from castoff.core.tools import tool
from castoff.model.hunks import text_of
from castoff.model.pin import DEFAULT_PIN, PROJECTS, Pin, load_pin, pin_names
from castoff.model.topics import Topic, load_topics, named

_RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
_VERSION_OF_TREE = {
    "version.txt": re.compile(r"()(\d+\.\d+\.\d+)"),
    "setup.py": re.compile(r"(?s).*(TORCH_XLA_VERSION)['\"], *['\"](\d+\.\d+\.\d+)['\"]"),
}
"""The files in which torch's tree and torch_xla's state their version, and its form."""
_ARRIVED = "[XPASS(strict)]"  # pytest's message for a test that passed but was expected to fail
_SECONDS = 3600
_CALL_SITES = re.compile(rb"(?m)^\+\+\+ b/(.+)$")


@dataclass(frozen=True)
class Newer:
    """The upstream that topics are checked against."""

    about: str  # what it is, for a person
    trees: dict[str, Path]  # for each project, the folder of a checkout or a wheel
    version: str | None  # the release whose wheels to run tests on, or None


@dataclass(frozen=True)
class Tested:
    """The outcome of one file of tests on a newer upstream."""

    file: str
    arrived: int = 0  # tests that fail on our pins' stock wheels and pass there
    absent: int = 0  # tests that fail on our pins' stock wheels and there
    broken: int = 0  # tests of unchanged behaviour that fail there
    unrun: str = ""  # why the tests did not run, if so


@dataclass(frozen=True)
class Drift:
    """The state of a topic on a newer upstream."""

    topic: Topic
    fit: Fit  # how its files and hunks fit
    tested: tuple[Tested, ...]  # the outcomes of its tests

    @property
    def arrived(self) -> int:
        """How many tests show that the behaviour is upstream."""
        return sum(tested.arrived for tested in self.tested)

    @property
    def tests(self) -> int:
        """How many tests could have shown it."""
        return self.arrived + sum(tested.absent for tested in self.tested)

    @property
    def is_upstream(self) -> bool:
        """Whether all of the topic's behaviour is upstream."""
        return self.tests > 0 and self.arrived == self.tests

    @property
    def needs_a_hand(self) -> bool:
        """Whether the topic does not apply to that upstream, and is still needed there."""
        return bool(self.fit.failed) and not self.is_upstream

    def applies_text(self) -> str:
        """Return whether it applies, as text."""
        if self.fit.failed:
            kinds = {trial.outcome.value for trial in self.fit.failed}
            return f"{', '.join(sorted(kinds))} ({len(self.fit.failed)} of {len(self.fit.trials)} files)"
        if not self.fit.trials and self.fit.skipped:
            return f"not tried ({len(self.fit.skipped)} C++ files)"
        skipped = f", {len(self.fit.skipped)} C++ files not tried" if self.fit.skipped else ""
        return f"yes ({len(self.fit.trials)} files{skipped})"

    def upstream_text(self) -> str:
        """Return whether it is upstream already, as text."""
        if self.topic.kind == "never":
            return "never will be"
        if not self.tests:
            return "not tried"
        if self.arrived in (0, self.tests):
            return f"{'yes' if self.arrived else 'no'} ({self.arrived} of {self.tests} tests)"
        return f"in part ({self.arrived} of {self.tests} tests)"

    def details(self) -> list[str]:
        """Return the details for a maintainer: its conflicts, and the outcomes of its tests."""
        rows = [f"{trial.path}: {trial.outcome.value}: {trial.detail}" for trial in self.fit.failed]
        if self.fit.skipped:
            rows.append(f"a wheel has none of these, try a checkout: {', '.join(self.fit.skipped)}")
        for tested in self.tested:
            said = f"{tested.arrived} of {tested.arrived + tested.absent} differences are upstream"
            if tested.broken:
                said += f", {tested.broken} tests of unchanged behaviour fail"
            rows.append(f"{tested.file}: {tested.unrun or said}")
        return rows

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        trials = self.fit.trials
        return {
            "topic": self.topic.key,
            "applies": not self.fit.failed if trials or not self.fit.skipped else None,
            "hunks_of": self.fit.pin,
            "files": [{"path": one.path, "outcome": one.outcome.value, "detail": one.detail} for one in trials],
            "skipped": list(self.fit.skipped),
            "upstream": self.arrived / self.tests if self.tests else None,
            "tests": [vars(tested) for tested in self.tested],
            "needs_a_hand": self.needs_a_hand,
        }


@contextmanager
def newer_upstream(
    against: str, project: str, pins: Sequence[Pin], indexes: Sequence[str], context: Context
) -> Iterator[Newer]:
    """Provide the upstream that the user means.

    Args:
        against: The folder of a checkout, a release such as "2.15", or else a ref of upstream's repository.
        project: The project whose ref it is.
        pins: The pins, the newest last.
        indexes: Package indexes to use besides those in pip's configuration.

    Raises:
        CheckoutError: The folder is not a tree of torch or torch_xla.
        FetchError: There is no such release or ref, or it is not available.
    """
    if Path(against).is_dir():
        yield checkout_of(Path(against).absolute())
    elif _RELEASE.fullmatch(against):
        yield _wheels(against, indexes, context)
    else:
        with context.cache.lock("drift-ref"), context.cache.scratch("drift-ref") as scratch:
            newest = next(pin for pin in reversed(pins) if project in pin.projects)
            repository = newest.upstream(project).repository
            fetch_ref(repository, against, scratch / "tree", context)
            fetched = checkout_of(scratch / "tree")
            yield replace(fetched, about=f"{against} of {repository}")


def checkout_of(folder: Path) -> Newer:
    """Return the upstream that a folder holds.

    Raises:
        CheckoutError: It is not a tree of torch or torch_xla.
    """
    projects = [project for project in PROJECTS if (folder / project / "__init__.py").is_file()]
    if len(projects) != 1:
        raise CheckoutError(
            f"{folder} is not a tree of upstream",
            expected="a checkout of torch or of torch_xla",
            found=f"{' and '.join(projects)} in it" if projects else "neither torch/__init__.py nor torch_xla's",
            next_step="Give the top folder of a checkout, a release like 2.15, or a ref of upstream's repository.",
        )
    if (folder / projects[0] / "_castoff.py").exists():
        raise CheckoutError(
            f"{folder} already has castoff's topics",
            expected="upstream's tree without them",
            found=f"{projects[0]}/_castoff.py",
            next_step="In a folder of `castoff checkout`, check out the commit below those of the topics (git log).",
        )

    def text_of(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8") if (folder / name).is_file() else ""

    # torch_xla's tree keeps the version of an earlier release, whose wheels do not show the tree's behaviour.
    version = version_of_tree(text_of) if projects[0] == "torch" else None
    return Newer(f"the checkout {folder}", {projects[0]: folder}, version)


def version_of_tree(text_of: Callable[[str], str]) -> str | None:
    """Return the release of a tree of torch or of torch_xla, if the tree states it.

    Args:
        text_of: Gives the text of a file at the top of the tree, empty if there is none.
    """
    found = (pattern.match(text_of(name)) for name, pattern in _VERSION_OF_TREE.items())
    return next((match[2] for match in found if match is not None), None)


def fetch_ref(repository: str, ref: str, folder: Path, context: Context) -> None:
    """Fetch the tree of a ref of upstream's repository into a folder.

    Raises:
        FetchError: It is not available.
    """
    folder.mkdir()
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    commands: list[list[str | Path]] = [
        ["git", "init", "--quiet", folder],
        ["git", "fetch", "--quiet", "--depth=1", repository, ref],
        ["git", "checkout", "--quiet", "FETCH_HEAD"],
    ]
    try:
        for command in commands:
            context.runner.run(command, name=f"git-{command[1]}", cwd=folder, env=environment)
    except CommandError as error:
        raise FetchError(
            f"{ref} of {repository} is not available",
            expected="git fetches that ref",
            found=error.found,
            next_step="Check the ref and the network, or give the folder of a checkout, or a release like 2.15.",
        ) from error


def _wheels(version: str, indexes: Sequence[str], context: Context) -> Newer:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = f"=={version}" if version.count(".") > 1 else f"=={version}.*"
    trees, found = {}, None
    for project in PROJECTS:
        release = find_release(project, wanted, python, indexes, context)
        if release is not None:
            trees[project] = fetch_release(release, indexes=indexes, context=context).path
            found = release.version.partition("+")[0] if project == "torch" else found
    if "torch" not in trees:
        raise FetchError(
            f"there is no torch {version}",
            expected=f"a wheel of torch{wanted} for CPython {python} in the package index",
            found="none",
            next_step="Check the version (`pip index versions torch`), or give another index with --index.",
        )
    return Newer(f"the wheels of torch {found}", trees, found)


def best_pins(topic: Topic, version: str | None, *, whole: bool) -> list[str]:
    """Return the pins whose hunks of a topic to try, best first.

    Args:
        version: The version of the tree, if it is known.
        whole: Whether the tree has C++ too: then hunks with C++ call sites come first.
    """
    applying = [pin for pin in topic.pins if topic.applies(pin)]
    at = _number(version) if version else max(map(_number, applying), default=(0, 0))

    def rank(pin: str) -> tuple[bool, int, tuple[int, ...]]:
        major, minor = _number(pin)
        distance = abs(at[0] - major) * 1000 + abs(at[1] - minor)
        return (whole and not _has_call_sites_in_cpp(topic, pin), distance, (-major, -minor))

    return sorted(applying, key=rank)


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _has_call_sites_in_cpp(topic: Topic, pin: str) -> bool:
    paths = _CALL_SITES.findall(text_of(topic.hunks(pin)))
    return any(path.decode().strip().endswith(CHECKOUT_ONLY_SUFFIXES) for path in paths)


def fits(topics: Sequence[Topic], newer: Newer, context: Context) -> dict[str, Fit]:
    """Try topics on a newer upstream.

    Args:
        topics: The topics, in order.

    Returns:
        For each topic of the upstream's projects, how it fits.
    """
    found = {}
    with context.cache.lock("drift"), context.cache.scratch("drift") as scratch:
        for project, source in newer.trees.items():
            own = [topic for topic in topics if topic.project == project]
            pins = {topic.key: best_pins(topic, newer.version, whole=source.is_dir()) for topic in own}
            (scratch / project).mkdir()
            for fit in try_topics(own, pins, source, scratch / project, context.runner):
                found[fit.topic] = fit
    return found


def make_environment(version: str, folder: Path, root: Path, indexes: Sequence[str], context: Context) -> Path:
    """Install stock wheels of a release and what tests need; return the Python.

    Args:
        version: The release of torch. torch_xla of the same release is installed if there is one.
        indexes: Package indexes that go before those in pip's configuration.

    Raises:
        FetchError: They are not available.
    """
    environment = current_uv_environment(context.runner)
    uv, python = tool("uv"), folder / "bin" / "python"
    minor = ".".join(version.split(".")[:2])
    install: list[str | Path] = [uv, "pip", "install", "--python", python]
    first = [argument for index in indexes for argument in ("--index", index)]
    lock = root / "ci" / "requirements.lock"
    constraint: list[str | Path] = ["--constraint", lock] if lock.is_file() else []
    tools = [*constraint, *TEST_TOOLS]
    try:
        venv: list[str | Path] = [uv, "venv", "--no-project", "--python", sys.executable, folder]
        context.runner.run(venv, name="venv", env=environment)
        context.runner.run([*install, *first, f"torch=={version}"], name="install", env=environment)
        context.runner.run([*install, *tools], name="tools", env=environment)
    except CommandError as error:
        raise FetchError(
            f"torch {version} cannot be installed",
            expected="uv installs it from the package index",
            found=error.found,
            next_step=f"{error.next_step}. Or give an environment that has it with --python, or use --no-tests.",
        ) from error
    with_xla: list[str | Path] = [*install, f"torch=={version}", f"torch_xla=={minor}.*"]
    if context.runner.run(with_xla, name="install-xla", env=environment, check=False).returncode != 0:
        context.console.note(f"there is no torch_xla {minor}: tests on XLA tensors are skipped")
    return python


def run_tests(topic: Topic, python: Path, root: Path, context: Context) -> tuple[Tested, ...]:
    """Run a topic's tests on stock wheels of a newer release.

    Args:
        python: The interpreter of an environment that has them.
    """
    with context.cache.lock("drift-tests"), context.cache.scratch("drift-tests") as scratch:
        return tuple(_run_file(file, python, root, scratch, context) for file in topic.tests)


def _run_file(file: str, python: Path, root: Path, scratch: Path, context: Context) -> Tested:
    report = scratch / "report.xml"
    report.unlink(missing_ok=True)
    # With `--stock` each test that shows a difference must fail; see tests/conftest.py. What is marked as upstream's
    # in that release is to be found out, not known.
    command: list[str | Path] = ["timeout", str(_SECONDS), python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--stock", "--whole", "--marks-of", DEFAULT_PIN, f"--junitxml={report}", file]
    environment = environment_for_tests() | {"PJRT_DEVICE": "CPU"}
    done = context.runner.run(command, name="drift-tests", cwd=root, env=environment, check=False)
    if done.returncode not in (0, 1) or not report.is_file():
        errors = [line for line in done.output.splitlines() if line.startswith(("E  ", "ERROR", "INTERNALERROR"))]
        last = errors[0].removeprefix("E ").strip() if errors else f"exit status {done.returncode}"
        return Tested(file, unrun=f"did not run there: {last}")
    return read_stock_report(file, report)


def read_stock_report(file: str, report: Path) -> Tested:
    """Return the outcomes in a report of ``pytest --stock``."""
    arrived = absent = broken = 0
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own pytest wrote it
        for child in case:
            if child.tag == "skipped":
                absent += child.get("type") == "pytest.xfail"
            elif _ARRIVED in (child.get("message") or "") + (child.text or ""):
                arrived += 1
            else:
                broken += 1
    unrun = "" if arrived or absent or broken else "none of its tests ran there"
    return Tested(file, arrived, absent, broken, unrun)


def drift(
    topics: Sequence[Topic], newer: Newer, python: Path | None, root: Path, context: Context
) -> tuple[Drift, ...]:
    """Check each topic against a newer upstream.

    Args:
        topics: The topics, in order.
        python: The interpreter of an environment with stock wheels of it, or None to run no tests.
    """
    fitting = fits(topics, newer, context)
    found = []
    for topic in topics:
        if topic.project not in newer.trees:
            continue
        tested: tuple[Tested, ...] = ()
        if python is not None and topic.project in _installed(python, context) and topic.kind != "never":
            with context.console.step("tests", topic.key):
                tested = run_tests(topic, python, root, context)
        found.append(Drift(topic, fitting[topic.key], tested))
    return tuple(found)


def _installed(python: Path, context: Context) -> frozenset[str]:
    question = "import importlib.util as u; print(*(n for n in ('torch', 'torch_xla') if u.find_spec(n)))"
    return frozenset(context.runner.run([python, "-c", question], name="installed").output.split())


def show_drift(
    against: str,
    *,
    project: str,
    names: Sequence[str],
    python: Path | None,
    tests: bool,
    indexes: Sequence[str],
    console: Console,
    root: Path = ROOT,
) -> bool:
    """Check each topic against a newer upstream, and print the result.

    Args:
        against: The folder of a checkout, a release, or a ref of upstream's repository.
        project: The project whose ref it is.
        names: The topics to check, as "project/name" or "name"; all if empty.
        python: The interpreter of an environment with stock wheels of that release; one is made if not given.
        tests: Whether to run tests at all.
        indexes: Package indexes to use besides those in pip's configuration.

    Returns:
        Whether no topic needs manual work.

    Raises:
        CastoffError: The upstream is not available, or a topic is not known.
    """
    topics = named(load_topics(root / "patches"), names)
    pins = [load_pin(root / "pins", name) for name in reversed(pin_names(root / "pins"))]
    with command_context(console) as context:
        with newer_upstream(against, project, pins, indexes, context) as newer:
            console.note(f"against {newer.about}")
            with _python(newer, python, root, indexes, context, tests=tests) as chosen:
                found = drift(topics, newer, chosen, root, context)
        about = newer.about
    well = not any(one.needs_a_hand for one in found)
    verdict = "no topic needs manual work" if well else "some topics need manual work"
    data: dict[str, object] = {"against": about, "well": well, "topics": [one.as_dict() for one in found]}
    columns = ("topic", "applies", "hunks of", "upstream already")
    lines = [_below(found), f"{about}: {verdict}"]
    if left_out := sorted({topic.project for topic in topics} - {one.topic.project for one in found}):
        lines.append(f"It has no {' and no '.join(left_out)}, whose topics were not checked.")
    console.table(columns, [_row(one) for one in found], "\n".join(filter(None, lines)), data)
    return well


@contextmanager
def _python(
    newer: Newer, python: Path | None, root: Path, indexes: Sequence[str], context: Context, *, tests: bool
) -> Iterator[Path | None]:
    """Provide the interpreter to run the tests with, or None if they are not run."""
    if not tests or python is not None or newer.version is None:
        if tests and python is None:
            context.console.warn(
                "this tree does not state its version, so no tests are run: give an environment with --python"
            )
        yield python.absolute() if tests and python is not None else None
        return
    with context.cache.lock("drift-venv"), context.cache.scratch("drift-venv") as scratch:
        try:
            with context.console.step("install", f"stock wheels of torch {newer.version}"):
                made = make_environment(newer.version, scratch / "venv", root, indexes, context)
        except FetchError as error:
            # A branch has wheels only once it is released.
            context.console.warn(f"no tests are run: {error.summary}; give an environment with --python")
            yield None
            return
        yield made


def _row(one: Drift) -> list[str]:
    return [one.topic.key, one.applies_text(), one.fit.pin or "none", one.upstream_text()]


def _below(found: Sequence[Drift]) -> str:
    """Return the text below the table: where and why."""
    blocks = []
    for one in found:
        indented = ["  " + row.replace("\n", "\n  ") for row in one.details()]
        if indented:
            blocks.append("\n".join([one.topic.key, *indented]))
    return "\n".join(blocks)
