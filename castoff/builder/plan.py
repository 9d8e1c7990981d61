"""Plan: the decisions of a build that need no wheel."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.fetch import cached_path
from castoff.core.cache import Cache
from castoff.core.console import Console
from castoff.core.interpreter import Interpreter, check_machine, find_interpreter
from castoff.core.places import ROOT, cache_root
from castoff.core.runner import Runner
from castoff.model.changelog import release_version
from castoff.model.pin import Pin, load_pin
from castoff.model.topics import Topic, load_topics, select


@dataclass(frozen=True)
class Request:
    """What the user asked to have built."""

    target: str  # what the wheels are for
    pin: str  # the name of the pin
    python: str | None  # a CPython version, the path of one, or None for the running one
    indexes: tuple[str, ...]  # package indexes to look at besides pip's own
    out: Path  # the folder of all output folders
    verify_install: bool  # whether to install and import the wheels
    root: Path = ROOT  # the tree with pins, patches and the changelog
    earlier: tuple[Path, ...] = ()  # further folders of output folders, whose wheels are used if they are the same


@dataclass(frozen=True)
class Plan:
    """What a build would do."""

    pin: Pin
    version: str  # the version of castoff, such as "castoff.1"
    interpreter: Interpreter  # the CPython that the wheels are for
    topics: tuple[Topic, ...]  # the topics that would be applied, in order
    target: Path  # the output folder

    def wheel_version(self, project: str) -> str:
        """Return the version of a project's wheel."""
        return f"{self.pin.upstream(project).version}+{self.version}"

    def requires(self, project: str) -> tuple[str, ...]:
        """Return what a project's wheel requires besides what upstream's does: torch_xla requires this very torch."""
        other = (f"torch=={self.wheel_version('torch')}",) if project == "torch_xla" else ()
        return (*self.pin.upstream(project).requires, *other)


def plan_build(request: Request, runner: Runner) -> Plan:
    """Decide everything that can be decided without a wheel.

    Raises:
        CastoffError: Something is wrong with the machine, the pin, the topics or the changelog.
    """
    check_machine()
    pin = load_pin(request.root / "pins", request.pin)
    interpreter = find_interpreter(request.python, runner, pin.pythons)
    for project in pin.projects:
        pin.accepted(project, interpreter.version)
    if request.target == "tpu":
        pin.libtpu_sha256(interpreter.version)
    return Plan(
        pin=pin,
        version=f"castoff.{release_version(request.root / 'CHANGELOG.md')}",
        interpreter=interpreter,
        topics=select(load_topics(request.root / "patches"), pin.name),
        target=request.out.absolute() / f"{pin.name}-{request.target}",
    )


def dry_run(request: Request, console: Console) -> None:
    """Show the plan of a build, and write nothing."""
    with tempfile.TemporaryDirectory(prefix="castoff-") as logs:
        plan = plan_build(request, Runner(Path(logs), console))
    cache = Cache(cache_root(), console)
    rows = [f"pin      {plan.pin.name} for CPython {plan.interpreter.version}, target {request.target}"]
    wheels: dict[str, object] = {}
    for project in plan.pin.projects:
        accepted = plan.pin.accepted(project, plan.interpreter.version)
        kept = next((path for wheel in accepted if (path := cached_path(cache, wheel)) is not None), None)
        rows.append(f"fetch    {kept.name + ' from the cache' if kept else project + ' from the package index'}")
        wheels[project] = {"version": plan.wheel_version(project), "cached": kept is not None}
    if request.target == "tpu":
        rows.append(f"fetch    libtpu {plan.pin.for_tpu().libtpu}")
    for topic in plan.topics:
        compiled = f", {len(topic.sources())} C++ source(s)" if topic.sources() else ""
        rows.append(f"apply    {topic.key}: {topic.title}{compiled}")
    rows += [f"repack   {project} {plan.wheel_version(project)}" for project in plan.pin.projects]
    tried = request.verify_install and plan.interpreter.path is not None
    rows.append(f"verify   structure, symbol versions{', installation, interposition' if tried else ' only'}")
    rows.append(f"write    {plan.target}")
    data: dict[str, object] = {
        "pin": plan.pin.name,
        "python": plan.interpreter.version,
        "target": request.target,
        "topics": [topic.key for topic in plan.topics],
        "wheels": wheels,
        "out": str(plan.target),
    }
    console.result("\n".join([*rows, "nothing was written"]), data)
