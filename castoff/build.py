"""Build: the stages in order."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.apply import Applied, apply_topics
from castoff.cache import Cache
from castoff.changelog import release_number
from castoff.compile import Compiler, Overlay, TorchTree, compile_overlay, find_compiler, overlay_name, unpack_torch
from castoff.console import Console
from castoff.context import Context
from castoff.dist import Workplace, workplace
from castoff.errors import MachineError, VerifyError
from castoff.fetch import BaseWheel, cached_path, fetch_libtpu, fetch_wheel, file_sha256
from castoff.interpreter import Interpreter, check_machine, find_interpreter
from castoff.manifest import (
    Build,
    Recorded,
    RecordedWheel,
    constraints,
    cuda_packages,
    install_line,
    install_text,
    manifest,
    read_manifest,
    tree_revision,
    wheels_key,
    write_manifest,
)
from castoff.pin import PROJECTS, Pin, load_pin
from castoff.places import cache_root
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
    if request.target == "tpu":
        pin.libtpu_sha256(interpreter.version)
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
    if request.target == "tpu":
        rows.append(f"fetch    libtpu {plan.pin.for_tpu().libtpu}")
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
    versions = {project: plan.wheel_version(project) for project in PROJECTS}
    line = install_line(request.target)
    console.result(
        f"built {plan.target}\ninstall it, from within that folder: {line}",
        {"out": str(plan.target), "versions": versions, "install": line},
    )
    return plan.target


def _build(request: Request, plan: Plan, compiler: Compiler | None, place: Workplace, context: Context) -> None:
    console = context.console
    with console.step("fetch", "upstream's wheels, by hash"):
        bases = {
            project: fetch_wheel(plan.pin, project, plan.interpreter.version, indexes=request.indexes, context=context)
            for project in PROJECTS
        }
        torch = unpack_torch(bases["torch"], plan.pin, context.cache)
        libtpu = None
        if request.target == "tpu":
            libtpu = fetch_libtpu(plan.pin, plan.interpreter.version, indexes=request.indexes, context=context)
            _link(libtpu.path, place.folder / libtpu.path.name)
    with console.step("compile", "the overlays"):
        overlays = _compile(plan, compiler, torch, context)
    wheels, verified = _reuse(request, plan, bases, overlays, place=place, console=console) or ([], None)
    if not wheels:
        wheels = _make(plan, bases, overlays, torch, place=place, context=context)
    if verified is None or (request.verify_install and not verified.installed):
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
        libtpu=libtpu,
        verified=verified,
    )
    if libtpu is not None:
        _warn_of_cuda(wheels, plan.pin, console)
        (place.folder / "INSTALL.txt").write_text(install_text(described), encoding="utf-8")
    (place.folder / "constraints.txt").write_text(constraints(described), encoding="utf-8")
    write_manifest(place.folder / "manifest.json", manifest(described))


def _make(
    plan: Plan,
    bases: Mapping[str, BaseWheel],
    overlays: Mapping[str, Overlay],
    torch: TorchTree,
    *,
    place: Workplace,
    context: Context,
) -> list[PatchedWheel]:
    console = context.console
    with tempfile.TemporaryDirectory(prefix="work-", dir=place.folder) as work_name:
        work = Path(work_name)
        with console.step("apply", f"{len(plan.topics)} topics"):
            applied = {project: _apply(plan, project, bases[project], work, context.runner) for project in PROJECTS}
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
                        requires=plan.pin.upstream(project).requires,
                        overlay=overlay,
                        libraries=libraries,
                        folder=place.folder,
                        console=console,
                    )
                )
    return wheels


def _reuse(
    request: Request,
    plan: Plan,
    bases: Mapping[str, BaseWheel],
    overlays: Mapping[str, Overlay],
    *,
    place: Workplace,
    console: Console,
) -> tuple[list[PatchedWheel], Verified] | None:
    """Take over the wheels of another target that was made from the same: the wheels do not depend on it.

    Returns:
        The wheels, as hard links and their hashes checked, and what was verified of them; None if no other
        output folder has them.
    """
    key = wheels_key(plan.pin, plan.version, plan.topics, list(overlays.values()), list(bases.values()))
    for folder in sorted(request.out.glob(f"{plan.pin.name}-*")):
        if folder == plan.target:
            continue
        try:
            recorded = read_manifest(folder / "manifest.json")
            if recorded.key != key:
                continue
            with console.step("reuse", f"the wheels in {folder.name}, which are made from the same"):
                for wheel in recorded.wheels.values():
                    _link(folder / wheel.file, place.folder / wheel.file)
                wheels = [
                    _recorded_wheel(place.folder / recorded.wheels[project].file, recorded.wheels[project], base)
                    for project, base in bases.items()
                ]
        except (VerifyError, OSError):
            # Unfinished, damaged or just being replaced: nothing to build on.
            for path in place.folder.glob("torch*.whl"):
                path.unlink()
            continue
        return wheels, recorded.verified
    return None


def _link(source: Path, target: Path) -> None:
    """Put a file in a second place, without a copy where the file system can."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


def _warn_of_cuda(wheels: Sequence[PatchedWheel], pin: Pin, console: Console) -> None:
    packages = cuda_packages(wheels)
    if packages:
        index = next((variant.index for variant in pin.variants.values() if variant.index), None)
        console.warn(
            f"this torch started from upstream's CUDA build: installing it brings {len(packages)} packages for GPUs "
            f"along, about 3 GB, which a TPU host has no use for."
            + (f" To start from the CPU build: --index {index}" if index else "")
        )


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
        if recorded.libtpu is not None:
            _check_file(folder / recorded.libtpu[0], recorded.libtpu[1])
        with console.step("verify", str(folder)):
            overlays = {project: _recorded_overlay(project, recorded, wheels, work) for project in recorded.overlays}
            plan = Plan(pin, "", interpreter, (), folder)
            verified = _verify(plan, wheels, overlays, torch, install=install, context=context)
    tried = "installed, imported" if verified.installed else "not installed"
    console.result(f"{folder} is well ({tried})", {"out": str(folder), "installed": verified.installed})
    return verified


def _check_file(path: Path, sha256: str) -> None:
    found = file_sha256(path) if path.is_file() else "no such file"
    if found != sha256:
        raise VerifyError(
            f"{path.name} is not the wheel that was built",
            expected=f"sha256 {sha256}, as manifest.json says",
            found=found,
            next_step="Build again.",
        )


def _recorded_wheel(path: Path, wheel: RecordedWheel, base: BaseWheel) -> PatchedWheel:
    _check_file(path, wheel.sha256)
    project = base.pinned.project
    with zipfile.ZipFile(base.path) as archive:
        names = archive.namelist()
    old_info, new_info = dist_info(names), f"{project}-{wheel.version}.dist-info"
    renames = {name: new_info + name.removeprefix(old_info) for name in names if name.startswith(f"{old_info}/")}
    return PatchedWheel(project, path, wheel.version, wheel.sha256, base, renames, wheel.changed, wheel.added)


def _recorded_overlay(project: str, recorded: Recorded, wheels: Sequence[PatchedWheel], work: Path) -> Overlay:
    overlay = recorded.overlays[project]
    wheel = next(wheel for wheel in wheels if wheel.project == project)
    path = work / overlay_name(project)
    with zipfile.ZipFile(wheel.path) as archive:
        path.write_bytes(archive.read(f"{project}/lib/{path.name}"))
    return Overlay(project, path, overlay.symbols, overlay.interposed, overlay.compiler, overlay.key)
