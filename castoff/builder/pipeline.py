"""Pipeline: the stages of a build, in order."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from castoff.builder.apply import Applied, apply_topics
from castoff.builder.compile import (
    Compiler,
    Overlay,
    TorchTree,
    compile_overlays,
    needed_compiler,
    unpack_torch,
)
from castoff.builder.fetch import BaseWheel, fetch_libtpu, fetch_wheels
from castoff.builder.manifest import (
    Build,
    constraints,
    cuda_packages,
    install_line,
    install_text,
    manifest,
    tree_revision,
    write_manifest,
)
from castoff.builder.output_folder import Workplace, workplace
from castoff.builder.plan import Plan, Request, plan_build
from castoff.builder.recorded import reuse
from castoff.builder.repack import PatchedWheel, repack
from castoff.builder.verify import verify_all
from castoff.core.cache import Cache, link
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.places import cache_root
from castoff.core.runner import Runner
from castoff.model.pin import Pin, load_pin
from castoff.model.topics import REGISTRY, registry


def build(request: Request, console: Console) -> Path:
    """Build the patched wheels, and tell the user how to install them.

    Args and errors are those of `build_wheels`.

    Returns:
        The output folder.
    """
    plan = build_wheels(request, console)
    versions = {project: plan.wheel_version(project) for project in plan.pin.projects}
    line = install_line(request.target, plan.pin.projects)
    console.result(
        f"built {plan.target}\ninstall it, from within that folder: {line}",
        {"out": str(plan.target), "versions": versions, "install": line},
    )
    return plan.target


def build_wheels(request: Request, console: Console) -> Plan:
    """Build the patched wheels.

    Returns:
        The plan, which has the output folder.

    Raises:
        CastoffError: What went wrong; the output folder is unchanged.
    """
    load_pin(request.root / "pins", request.pin)  # the pin's name becomes that of folders which are removed
    with workplace(request.out.absolute(), f"{request.pin}-{request.target}", console) as place:
        runner = Runner(place.logs, console)
        with console.step("pin", f"{request.pin}, target {request.target}"):
            plan = plan_build(request, runner)
            compiler = needed_compiler(plan.topics, runner)
        context = Context(Cache(cache_root(), console), runner, console)
        _build(request, plan, compiler, place, context)
    return plan


def _build(request: Request, plan: Plan, compiler: Compiler | None, place: Workplace, context: Context) -> None:
    console = context.console
    with console.step("fetch", "upstream's wheels, by hash"):
        bases = fetch_wheels(plan.pin, plan.interpreter.version, indexes=request.indexes, context=context)
        torch = unpack_torch(bases["torch"], plan.pin, context.cache)
        libtpu = None
        if request.target == "tpu":
            libtpu = fetch_libtpu(plan.pin, plan.interpreter.version, indexes=request.indexes, context=context)
            link(libtpu.path, place.folder / libtpu.path.name)
    with console.step("compile", "the overlays"):
        overlays = compile_plan(plan, compiler, torch, context)
    wheels, verified = reuse(request, plan, bases, overlays, place=place, console=console) or ([], None)
    if not wheels:
        wheels = _make(plan, bases, overlays, place=place, context=context)
    if verified is None or (request.verify_install and not verified.installed):
        with console.step("verify", "what was built"):
            verified = verify_all(
                wheels, overlays, torch, plan.pin, plan.interpreter, install=request.verify_install, context=context
            )
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
    *,
    place: Workplace,
    context: Context,
) -> list[PatchedWheel]:
    console = context.console
    with tempfile.TemporaryDirectory(prefix="work-", dir=place.folder) as work_name:
        work = Path(work_name)
        with console.step("apply", f"{len(plan.topics)} topics"):
            applied = {
                project: apply_project(plan, project, bases[project], work, context.runner)
                for project in plan.pin.projects
            }
        with console.step("repack", f"version {plan.wheel_version('torch')}"):
            return [
                repack(
                    bases[project],
                    plan.wheel_version(project),
                    applied[project],
                    requires=plan.requires(project),
                    overlay=overlays.get(project),
                    folder=place.folder,
                    console=console,
                )
                for project in plan.pin.projects
            ]


def _warn_of_cuda(wheels: Sequence[PatchedWheel], pin: Pin, console: Console) -> None:
    packages = cuda_packages(wheels)
    if packages:
        index = next((variant.index for variant in pin.variants.values() if variant.index), None)
        console.warn(
            f"this torch started from upstream's CUDA build: {len(packages)} packages for GPUs are installed with it, "
            f"about 3 GB, which a TPU host does not need."
            + (f" To start from the CPU build: --index {index}" if index else "")
        )


def apply_project(plan: Plan, project: str, base: BaseWheel, work: Path, runner: Runner) -> Applied:
    """Return the Python files of a project with the topics of a plan."""
    tree = work / project
    tree.mkdir()
    own = [topic for topic in plan.topics if topic.project == project]
    applied = apply_topics(own, plan.pin.name, base.path, tree, runner)
    if not own:
        return applied
    generated = {f"{project}/{REGISTRY}": registry(plan.topics, project).encode()}
    return replace(applied, added={**applied.added, **generated})


def compile_plan(plan: Plan, compiler: Compiler | None, torch: TorchTree, context: Context) -> dict[str, Overlay]:
    """Return the overlays of a plan, by project; none without a compiler, since no topic needs one then."""
    if compiler is None:
        return {}
    projects = plan.pin.projects
    return compile_overlays(projects, plan.topics, plan.pin, torch, compiler, context=context)
