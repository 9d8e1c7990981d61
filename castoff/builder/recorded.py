"""Wheels of earlier builds, read from their manifest: reused for another target, or verified again."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from castoff.builder.compile import (
    Overlay,
    overlay_name,
    unpack_torch,
)
from castoff.builder.fetch import BaseWheel, fetch_wheel, file_sha256
from castoff.builder.manifest import (
    Recorded,
    RecordedWheel,
    read_manifest,
    wheels_key,
)
from castoff.builder.output_folder import Workplace
from castoff.builder.plan import Plan, Request
from castoff.builder.repack import PatchedWheel
from castoff.builder.verify import Verified, verify_all
from castoff.core.cache import link
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.errors import MachineError, VerifyError
from castoff.core.interpreter import check_machine, find_interpreter
from castoff.core.places import ROOT
from castoff.formats.wheels import dist_info
from castoff.model.pin import load_pin


def reuse(
    request: Request,
    plan: Plan,
    bases: Mapping[str, BaseWheel],
    overlays: Mapping[str, Overlay],
    *,
    place: Workplace,
    console: Console,
) -> tuple[list[PatchedWheel], Verified] | None:
    """Take over wheels that were made from the same, for this target or another: they do not depend on it.

    Returns:
        The wheels, as hard links and their hashes checked, and what was verified of them; None if no output
        folder has them.
    """
    key = wheels_key(plan.pin, plan.version, plan.topics, list(overlays.values()), list(bases.values()))
    for folder in [
        folder for out in (request.out, *request.earlier) for folder in sorted(out.glob(f"{plan.pin.name}-*"))
    ]:
        try:
            recorded = read_manifest(folder / "manifest.json")
            if recorded.key != key:
                continue
            with console.step("reuse", f"the wheels in {folder.name}, which have the same inputs"):
                for wheel in recorded.wheels.values():
                    link(folder / wheel.file, place.folder / wheel.file)
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


def verify_folder(
    folder: Path,
    *,
    python: str | None,
    indexes: Sequence[str],
    install: bool,
    console: Console,
    root: Path = ROOT,
) -> Verified:
    """Check wheels that were built before, by their manifest.

    Args:
        python: The path of a CPython to install them with, or None to find one.
        indexes: Package indexes to fetch upstream's wheels from, besides pip's own.
        install: Whether to install and import them.

    Raises:
        CastoffError: What is wrong with them.
    """
    check_machine()
    recorded = read_manifest(folder / "manifest.json")
    pin = load_pin(root / "pins", recorded.pin)
    # Its logs stay if it fails, and uv is run elsewhere: the wheels' paths must not depend on where we are.
    folder = folder.absolute()
    with command_context(console) as context, tempfile.TemporaryDirectory(prefix="castoff-") as work_name:
        work = Path(work_name)
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
            verified = verify_all(wheels, overlays, torch, pin, interpreter, install=install, context=context)
    tried = "installed, imported" if verified.installed else "not installed"
    console.result(f"{folder}: no problems found ({tried})", {"out": str(folder), "installed": verified.installed})
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
