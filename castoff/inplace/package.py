"""Package: castoff's command line and the deltas of pins, as one wheel for every CPython.

In the wheel castoff/tree/ stands for the tree: pins, topics, changelog, and in deltas/ what the patched wheels have.
"""

from __future__ import annotations

import shutil
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from castoff.builder.compile import Compiler, needed_compiler, unpack_torch
from castoff.builder.fetch import BaseWheel, fetch_wheels
from castoff.builder.output_folder import workplace
from castoff.builder.pipeline import apply_project, compile_plan
from castoff.builder.plan import Plan, Request, plan_build
from castoff.builder.verify import verify_overlay
from castoff.core.cache import Cache
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.places import TREE, cache_root
from castoff.core.runner import Runner
from castoff.formats.wheels import Row, dist_info, parse_record, record_digest, write_record
from castoff.inplace.delta import FOLDER, Delta, Part, write_delta
from castoff.model.changelog import release_version

TARGET = "package"
_DATE = (1980, 1, 1, 0, 0, 0)
_TAG = "py3-none-manylinux_2_28_x86_64"
_TREE = ("CHANGELOG.md", "LICENSE", "pins", "patches", "ci/requirements.lock")
_CONSOLE = "[console_scripts]\ncastoff = castoff.cli.main:main\n"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "upstream")  # recipes of pull requests
_CONTAINER = "container"  # for hosts without Python packages: it runs from the tree


@dataclass(frozen=True)
class Package:
    """Castoff's package, built."""

    path: Path
    plans: tuple[Plan, ...]  # of each pin
    bases: tuple[BaseWheel, ...]  # the upstream wheels that its overlays were made for
    compiler: Compiler | None  # what compiled them, if there was something to compile


def build_package(request: Request, pins: Sequence[str], console: Console) -> Path:
    """Build castoff's package, and tell the user how to install it.

    Args and errors are those of `make_package`.

    Returns:
        The wheel.
    """
    path = make_package(request, pins, console).path
    console.result(
        f"built {path} ({path.stat().st_size / 1e6:.1f} MB)\ninstall it: pip install {path}", {"out": str(path)}
    )
    return path


def make_package(request: Request, pins: Sequence[str], console: Console) -> Package:
    """Build castoff's package.

    Args:
        pins: The names of the pins whose overlays go into it.

    Returns:
        It, and what went in.

    Raises:
        CastoffError: What went wrong; the output folder is unchanged.
    """
    made = []
    with workplace(request.out.absolute(), TARGET, console) as place:
        context = Context(Cache(cache_root(), console), Runner(place.logs, console), console)
        with tempfile.TemporaryDirectory(prefix="work-", dir=place.folder) as name:
            content = Path(name) / "content"
            _copy_tree(request.root, content / "castoff")
            for pin in pins:
                work = Path(name) / pin
                work.mkdir()
                one = replace(request, pin=pin, target="cpu")
                made.append(_add_delta(one, content / TREE / FOLDER, work, context))
            with console.step("pack", f"castoff {release_version(request.root / 'CHANGELOG.md')}"):
                wheel = _pack(content, request.root, place.folder)
    return Package(
        path=place.target / wheel.name,
        plans=tuple(plan for plan, _, _ in made),
        bases=tuple(base for _, bases, _ in made for base in bases),
        compiler=next((compiler for _, _, compiler in made if compiler is not None), None),
    )


def _copy_tree(root: Path, package: Path) -> None:
    shutil.copytree(
        Path(__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__", _CONTAINER, TREE.name)
    )
    for name in _TREE:
        target = package / TREE.name / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_dir():
            shutil.copytree(root / name, target, ignore=_LEFT_OUT)
        else:
            shutil.copyfile(root / name, target)


def _add_delta(
    request: Request, deltas: Path, work: Path, context: Context
) -> tuple[Plan, list[BaseWheel], Compiler | None]:
    """Make the delta of one pin; return what it was made from."""
    console = context.console
    with console.step("pin", request.pin):
        plan = plan_build(request, context.runner)
        compiler = needed_compiler(plan.topics, context.runner)
    with console.step("fetch", "upstream's wheels, by hash"):
        bases = fetch_wheels(plan.pin, plan.interpreter.version, indexes=request.indexes, context=context)
        torch = unpack_torch(bases["torch"], plan.pin, context.cache)
    with console.step("compile", "the overlays"):
        overlays = compile_plan(plan, compiler, torch, context)
        for overlay in overlays.values():
            verify_overlay(overlay, torch, plan.pin.platform_of(overlay.project))
    with console.step("apply", f"{len(plan.topics)} topics"):
        parts, files = {}, {}
        for project, base in bases.items():
            applied = apply_project(plan, project, base, work, context.runner)
            members = {**applied.changed, **applied.added}
            if project in overlays:
                members |= overlays[project].members()
            parts[project] = _part(plan, base, members)
            files.update(members)
        delta = Delta(plan.pin.name, plan.version, plan.pin.cxx11_abi, parts)
        write_delta(deltas, delta, sorted(files.items()))
    return plan, list(bases.values()), compiler


def _part(plan: Plan, base: BaseWheel, members: Mapping[str, bytes]) -> Part:
    project = base.pinned.project
    upstream = plan.pin.upstream(project)
    with zipfile.ZipFile(base.path) as archive:
        record = parse_record(archive.read(f"{dist_info(archive.namelist())}/RECORD"))
    return Part(
        version=upstream.version,
        patched=plan.wheel_version(project),
        commit=upstream.commit,
        requires=plan.requires(project),
        stock={row.path: row.digest for row in record if row.path in members},
        new={name: record_digest(data) for name, data in sorted(members.items())},
    )


def _pack(content: Path, root: Path, folder: Path) -> Path:
    """Write the wheel: the same bytes for the same content."""
    version = release_version(root / "CHANGELOG.md")
    info = content / f"castoff-{version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    shutil.copyfile(root / "LICENSE", info / "licenses" / "LICENSE")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (info / "METADATA").write_text(_metadata(project, version), encoding="utf-8")
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: castoff\nRoot-Is-Purelib: true\nTag: {_TAG}\n", encoding="utf-8"
    )
    plugins = "".join(f"{name} = {place}\n" for name, place in project["entry-points"]["pytest11"].items())
    (info / "entry_points.txt").write_text(f"{_CONSOLE}\n[pytest11]\n{plugins}", encoding="utf-8")
    members = {path.relative_to(content).as_posix(): path for path in sorted(content.rglob("*")) if path.is_file()}
    rows = [Row(name, record_digest(path.read_bytes()), str(path.stat().st_size)) for name, path in members.items()]
    record = f"{info.name}/RECORD"
    wheel = folder / f"castoff-{version}-{_TAG}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, path in members.items():
            _add(archive, name, path.read_bytes())
        _add(archive, record, write_record([*rows, Row(record, "", "")]))
    return wheel


def _metadata(project: dict[str, object], version: str) -> str:
    listed = project["dependencies"]
    assert isinstance(listed, list)
    return "".join(
        f"{line}\n"
        for line in (
            "Metadata-Version: 2.4",
            f"Name: {project['name']}",
            f"Version: {version}",
            f"Summary: {project['description']}",
            f"License-Expression: {project['license']}",
            "License-File: LICENSE",
            f"Requires-Python: {project['requires-python']}",
            *(f"Requires-Dist: {line}" for line in listed),
        )
    )


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3  # Unix
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data, compresslevel=9)
