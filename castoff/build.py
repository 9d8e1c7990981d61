"""Build: the stages in order."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.apply import Applied, apply_topics
from castoff.cache import Cache, cache_root
from castoff.changelog import release_number
from castoff.compile import Compiler, Overlay, TorchTree, compile_overlay, find_compiler, overlay_name, unpack_torch
from castoff.console import Console
from castoff.context import Context
from castoff.dist import Workplace, workplace
from castoff.errors import MachineError, VerifyError
from castoff.fetch import BaseWheel, cached_path, fetch_wheel, file_sha256
from castoff.interpreter import Interpreter, check_machine, find_interpreter
from castoff.manifest import (
    Build,
    Recorded,
    RecordedWheel,
    constraints,
    manifest,
    read_manifest,
    tree_revision,
    write_manifest,
)
from castoff.pin import PROJECTS, Pin, load_pin
from castoff.repack import PatchedWheel, repack, with_overlay
from castoff.run import Runner
from castoff.topics import Topic, load_topics, select
from castoff.verify import Verified, verify_installed, verify_overlay, verify_structure
from castoff.wheels import dist_info

ROOT = Path(__file__).parent.parent
"""The tree of castoff: pins, patches and the changelog are beside this package."""


@dataclass(frozen=True)
class Request:
    """What the user asked to have built.

    Attributes:
        target: What the wheels are for.
        pin: The name of the pin.
        python: A CPython version, the path of one, or None for the running one.
        indexes: Package indexes to look at besides pip's own.
        out: The folder of all output folders.
        verify_install: Whether to install and import the wheels.
        root: The tree with pins, patches and the changelog.
    """

    target: str
    pin: str
    python: str | None
    indexes: tuple[str, ...]
    out: Path
    verify_install: bool
    root: Path = ROOT


@dataclass(frozen=True)
class Plan:
    """What a build would do.

    Attributes:
        pin: The pin.
        version: The version of castoff, such as "castoff.1".
        interpreter: The CPython that the wheels are for.
        topics: The topics that would be applied, in order.
        target: The output folder.
    """

    pin: Pin
    version: str
    interpreter: Interpreter
    topics: tuple[Topic, ...]
    target: Path

    def wheel_version(self, project: str) -> str:
        """Return the version of a project's wheel."""
        return f"{self.pin.upstream(project).version}+{self.version}"


def plan_build(request: Request, runner: Runner) -> Plan:
    """Decide everything that can be decided without touching a wheel.

    Args:
        request: What the user wants.
        runner: Runs the interpreter to ask what it is.

    Raises:
        CastoffError: Something is wrong with the machine, the pin, the topics or the changelog.
    """
    check_machine()
    pin = load_pin(request.root / "pins", request.pin)
    interpreter = find_interpreter(request.python, runner, pin.pythons)
    for project in PROJECTS:
        pin.accepted(project, interpreter.version)
    return Plan(
        pin=pin,
        version=f"castoff.{release_number(request.root / 'CHANGELOG.md')}",
        interpreter=interpreter,
        topics=select(load_topics(request.root / "patches"), pin.name),
        target=request.out.absolute() / f"{pin.name}-{request.target}",
    )


def dry_run(request: Request, console: Console) -> None:
    """Show what a build would do, and write nothing."""
    with tempfile.TemporaryDirectory(prefix="castoff-") as logs:
        plan = plan_build(request, Runner(Path(logs), console))
    cache = Cache(cache_root(), console)
    rows = [f"pin      {plan.pin.name} for CPython {plan.interpreter.version}, target {request.target}"]
    wheels: dict[str, object] = {}
    for project in PROJECTS:
        accepted = plan.pin.accepted(project, plan.interpreter.version)
        kept = next((path for wheel in accepted if (path := cached_path(cache, wheel)) is not None), None)
        rows.append(f"fetch    {kept.name + ' from the cache' if kept else project + ' from the package index'}")
        wheels[project] = {"version": plan.wheel_version(project), "cached": kept is not None}
    for topic in plan.topics:
        compiled = f", {len(topic.sources())} C++ source(s)" if topic.sources() else ""
        rows.append(f"apply    {topic.key}: {topic.title}{compiled}")
    rows += [f"repack   {project} {plan.wheel_version(project)}" for project in PROJECTS]
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
    console.result("\n".join(rows), data)


def build(request: Request, console: Console) -> Path:
    """Build the patched wheels.

    Args:
        request: What the user wants.
        console: Shows how it goes.

    Returns:
        The output folder.

    Raises:
        CastoffError: What went wrong; the output folder is as it was.
    """
    with workplace(request.out.absolute(), f"{request.pin}-{request.target}", console) as place:
        runner = Runner(place.logs, console)
        with console.step("pin", f"{request.pin}, target {request.target}"):
            plan = plan_build(request, runner)
            compiler = find_compiler(runner) if any(topic.sources() for topic in plan.topics) else None
        context = Context(Cache(cache_root(), console), runner, console)
        _build(request, plan, compiler, place, context)
    summary = {"out": str(plan.target), "versions": {project: plan.wheel_version(project) for project in PROJECTS}}
    console.result(f"built {plan.target}", dict(summary))
    return plan.target


def _build(request: Request, plan: Plan, compiler: Compiler | None, place: Workplace, context: Context) -> None:
    console = context.console
    with console.step("fetch", "upstream's wheels, by hash"):
        bases = {
            project: fetch_wheel(plan.pin, project, plan.interpreter.version, indexes=request.indexes, context=context)
            for project in PROJECTS
        }
        torch = unpack_torch(bases["torch"], plan.pin, context.cache)
    with tempfile.TemporaryDirectory(prefix="work-", dir=place.folder) as work_name:
        work = Path(work_name)
        with console.step("apply", f"{len(plan.topics)} topics"):
            applied = {project: _apply(plan, project, bases[project], work, context.runner) for project in PROJECTS}
        with console.step("compile", "the overlays"):
            overlays = _compile(plan, compiler, torch, context)
        with console.step("repack", f"version {plan.wheel_version('torch')}"):
            wheels = []
            for project in PROJECTS:
                overlay = overlays.get(project)
                libraries = {}
                if project == "torch" and overlay is not None:
                    libraries = with_overlay(torch, overlay, work, context.runner)
                wheels.append(
                    repack(
                        bases[project],
                        plan.wheel_version(project),
                        applied[project],
                        overlay=overlay,
                        libraries=libraries,
                        folder=place.folder,
                        console=console,
                    )
                )
    with console.step("verify", "what was built"):
        verified = _verify(plan, wheels, overlays, torch, install=request.verify_install, context=context)
    described = Build(
        pin=plan.pin,
        target=request.target,
        python=plan.interpreter.version,
        version=plan.version,
        revision=tree_revision(request.root),
        topics=plan.topics,
        overlays=list(overlays.values()),
        wheels=wheels,
        verified=verified,
    )
    (place.folder / "constraints.txt").write_text(constraints(wheels), encoding="utf-8")
    write_manifest(place.folder / "manifest.json", manifest(described))


def _apply(plan: Plan, project: str, base: BaseWheel, work: Path, runner: Runner) -> Applied:
    tree = work / project
    tree.mkdir()
    own = [topic for topic in plan.topics if topic.project == project]
    return apply_topics(own, plan.pin.name, base.path, tree, runner)


def _compile(plan: Plan, compiler: Compiler | None, torch: TorchTree, context: Context) -> dict[str, Overlay]:
    if compiler is None:
        return {}
    overlays = {
        project: compile_overlay(project, plan.topics, plan.pin, torch, compiler, version=plan.version, context=context)
        for project in PROJECTS
    }
    return {project: overlay for project, overlay in overlays.items() if overlay is not None}


def _verify(
    plan: Plan,
    wheels: Sequence[PatchedWheel],
    overlays: dict[str, Overlay],
    torch: TorchTree,
    *,
    install: bool,
    context: Context,
) -> Verified:
    for wheel in wheels:
        verify_structure(wheel)
    for overlay in overlays.values():
        verify_overlay(overlay, torch, plan.pin.platform_of(overlay.project))
    if not install:
        context.console.warn("the wheels were not installed and imported: --no-verify-install")
        return Verified(False, "--no-verify-install", {})
    return verify_installed(wheels, overlays.get("torch"), torch, plan.interpreter, context)


def verify_folder(
    folder: Path,
    *,
    python: str | None,
    indexes: Sequence[str],
    install: bool,
    console: Console,
    root: Path = ROOT,
) -> Verified:
    """Check wheels that were built before, by what their manifest says.

    Args:
        folder: The output folder.
        python: The path of a CPython to try them with, or None to look for one.
        indexes: Package indexes to fetch upstream's wheels from, besides pip's own.
        install: Whether to install and import them.
        console: Shows how it goes.
        root: The tree with the pins.

    Raises:
        CastoffError: What is wrong with them.
    """
    check_machine()
    recorded = read_manifest(folder / "manifest.json")
    pin = load_pin(root / "pins", recorded.pin)
    with tempfile.TemporaryDirectory(prefix="castoff-") as work_name:
        work = Path(work_name)
        context = Context(Cache(cache_root(), console), Runner(work / "logs", console), console)
        interpreter = find_interpreter(python or recorded.python, context.runner)
        if interpreter.version != recorded.python:
            raise MachineError(
                "the wheels are for another CPython",
                expected=f"CPython {recorded.python}, as manifest.json says",
                found=f"CPython {interpreter.version}",
                next_step="Leave out --python, or give the path of such a CPython.",
            )
        with console.step("fetch", "upstream's wheels, to compare with"):
            wheels = []
            for project, wheel in recorded.wheels.items():
                base = fetch_wheel(
                    pin, project, recorded.python, indexes=indexes, context=context, only=wheel.base_sha256
                )
                wheels.append(_recorded_wheel(folder / wheel.file, wheel, base))
            torch = unpack_torch(wheels[0].base, pin, context.cache)
        with console.step("verify", str(folder)):
            overlays = {project: _recorded_overlay(project, recorded, wheels, work) for project in recorded.overlays}
            plan = Plan(pin, "", interpreter, (), folder)
            verified = _verify(plan, wheels, overlays, torch, install=install, context=context)
    tried = "installed, imported" if verified.installed else "not installed"
    console.result(f"{folder} is well ({tried})", {"out": str(folder), "installed": verified.installed})
    return verified


def _recorded_wheel(path: Path, wheel: RecordedWheel, base: BaseWheel) -> PatchedWheel:
    found = file_sha256(path) if path.is_file() else "no such file"
    if found != wheel.sha256:
        raise VerifyError(
            f"{wheel.file} is not the wheel that was built",
            expected=f"sha256 {wheel.sha256}, as manifest.json says",
            found=found,
            next_step="Build again.",
        )
    project = base.pinned.project
    with zipfile.ZipFile(base.path) as archive:
        names = archive.namelist()
    old_info, new_info = dist_info(names), f"{project}-{wheel.version}.dist-info"
    renames = {name: new_info + name.removeprefix(old_info) for name in names if name.startswith(f"{old_info}/")}
    return PatchedWheel(project, path, wheel.version, found, base, renames, wheel.changed, wheel.added)


def _recorded_overlay(project: str, recorded: Recorded, wheels: Sequence[PatchedWheel], work: Path) -> Overlay:
    overlay = recorded.overlays[project]
    wheel = next(wheel for wheel in wheels if wheel.project == project)
    path = work / overlay_name(project)
    with zipfile.ZipFile(wheel.path) as archive:
        path.write_bytes(archive.read(f"{project}/lib/{path.name}"))
    return Overlay(project, path, overlay.symbols, overlay.interposed, overlay.compiler, overlay.key)
