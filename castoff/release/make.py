"""Make a release: package, wheels, index, hashes, bill of materials and provenance, in one folder."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name

from castoff.builder.fetch import BaseWheel, file_sha256
from castoff.builder.manifest import read_manifest, tree_revision
from castoff.builder.output_folder import Workplace, workplace
from castoff.builder.pipeline import build_wheels
from castoff.builder.plan import Plan, Request
from castoff.core.cache import link
from castoff.core.console import Console
from castoff.core.errors import PinError, ReleaseError, VerifyError
from castoff.core.interpreter import check_machine, find_interpreter
from castoff.core.places import ROOT
from castoff.core.runner import Runner
from castoff.inplace.package import Package, make_package
from castoff.model.changelog import release_date, release_version
from castoff.model.pin import DEFAULT_PIN, Pin, Variant, load_pin, pair_names
from castoff.release.index import write_index
from castoff.release.layout import (
    PROVENANCE,
    REQUIREMENTS,
    SBOM,
    WHEELS,
    Input,
    ReleasedWheel,
    requirement_lines,
    write_sums,
)
from castoff.release.provenance import LOCAL_BUILDER, Resource, Statement, statement, tree_resource

NAME = "release"
"""The name of the output folder."""


@dataclass(frozen=True)
class Asked:
    """What the user wants of a release."""

    pins: tuple[str, ...]  # the pins; if empty, those of the wheels that are there, or the default one
    pythons: tuple[str, ...]  # the CPythons; if empty, those of the wheels that are there, or the running one
    everything: bool  # all pins and all their CPythons instead
    earlier: tuple[Path, ...]  # folders of output folders, whose wheels are used if they are of this tree
    indexes: tuple[str, ...]  # package indexes to look at besides pip's own
    out: Path  # the folder of all output folders
    verify_install: bool  # whether to install and import wheels that are built
    dirty: bool = False  # whether changes that are not committed may be in it
    builder: str = LOCAL_BUILDER  # the URI of who makes it
    repository: str | None = None  # the address of castoff's repository
    root: Path = ROOT  # castoff's tree


@dataclass(frozen=True)
class _Set:
    """The wheels of one pin and CPython."""

    pin: str
    python: str
    wheels: tuple[ReleasedWheel, ...]
    bases: dict[str, Resource]  # the upstream wheels, by hash
    compilers: frozenset[str]


def make_release(asked: Asked, console: Console) -> Path:
    """Make a release.

    Wheels that are there are used if they are of this tree; others are built.

    Returns:
        The folder.

    Raises:
        ReleaseError: The tree has no commit, or changes that are not committed.
        CastoffError: What else went wrong. The folder of the release is unchanged.
    """
    check_machine()
    revision = _revision(asked)
    number = f"castoff.{release_version(asked.root / 'CHANGELOG.md')}"
    with workplace(asked.out.absolute(), NAME, console) as place:
        wanted = _wanted(asked, Runner(place.logs, console))
        console.note(", ".join(f"pin {pin.name} for CPython {python}" for pin, python in wanted))
        parts = place.logs  # what is built on the way: with its logs, if it fails, and without its wheels
        (place.folder / WHEELS).mkdir()
        try:
            package = make_package(_request(asked, parts), list(dict.fromkeys(pin.name for pin, _ in wanted)), console)
            sets = [_wheels(asked, pin, python, place, console) for pin, python in wanted]
            with console.step("release", f"{number}, of {revision}"):
                _describe(place.folder, asked, sets, package, revision)
        finally:
            for path in parts.rglob("*.whl"):
                path.unlink()
    wheels = sorted(path.name for path in (place.target / WHEELS).glob("*.whl"))
    console.result(
        f"made {place.target}: {len(wheels)} wheels of {revision}, not signed\n"
        f"check it: castoff verify --release {place.target}",
        {"out": str(place.target), "wheels": wheels, "revision": revision},
    )
    return place.target


def _revision(asked: Asked) -> str:
    revision = tree_revision(asked.root)
    if revision is None or (revision.endswith("-dirty") and not asked.dirty):
        raise ReleaseError(
            "this tree cannot be released",
            expected="a git repository without changes, so that the commit names everything in it",
            found="changes that are not committed (git status)" if revision else f"{asked.root} is not in git",
            next_step="Commit them, or --dirty to try it: the provenance then says so."
            if revision
            else "Use a clone of the repository.",
        )
    return revision


def _wanted(asked: Asked, runner: Runner) -> list[tuple[Pin, str]]:
    there: dict[str, set[str]] = {}
    for path in [path for out in (asked.out, *asked.earlier) for path in sorted(out.glob("[0-9]*/manifest.json"))]:
        try:
            recorded = read_manifest(path)
        except VerifyError:
            continue  # of a later or earlier castoff
        there.setdefault(recorded.pin, set()).add(recorded.python)
    known = pair_names(asked.root / "pins")
    found = []
    for name in known if asked.everything else asked.pins or [pin for pin in known if pin in there] or [DEFAULT_PIN]:
        pin = load_pin(asked.root / "pins", name)
        if asked.everything:
            pythons: Sequence[str] = pin.pythons
        elif asked.pythons:
            pythons = [python for python in pin.pythons if python in asked.pythons]
        else:
            pythons = [python for python in pin.pythons if python in there.get(name, set())]
            pythons = pythons or [find_interpreter(None, runner, pin.pythons).version]
        found += [(pin, python) for python in pythons]
    missing = set(asked.pythons) - {python for _, python in found}
    if missing:
        raise PinError(
            "no pin of this release has wheels for that CPython",
            expected="CPythons of the pins that are released",
            found=", ".join(sorted(missing)),
            next_step="Leave it out, or add a pin that has it with --pin.",
        )
    return found


def _request(asked: Asked, out: Path) -> Request:
    return Request(
        target="cpu",
        pin=DEFAULT_PIN,
        python=None,
        indexes=asked.indexes,
        out=out,
        verify_install=asked.verify_install,
        root=asked.root,
        earlier=(asked.out.absolute(), *asked.earlier),
    )


def _wheels(asked: Asked, pin: Pin, python: str, place: Workplace, console: Console) -> _Set:
    """Take over or build the wheels of one pin and CPython: equal keys mean equal bytes."""
    out = place.logs / f"cp{python.replace('.', '')}"
    plan = build_wheels(replace(_request(asked, out), pin=pin.name, python=python), console)
    data = json.loads((plan.target / "manifest.json").read_text(encoding="utf-8"))
    wheels, bases = [], {}
    for project, made in data["wheels"].items():
        path = place.folder / WHEELS / made["file"]
        link(plan.target / made["file"], path)
        upstream, base = pin.upstream(project), made["base"]
        source = Input(base["file"], base["sha256"], upstream.version, upstream.repository, upstream.commit)
        topics = tuple(topic.name for topic in plan.topics if topic.project == project)
        wheels.append(ReleasedWheel(path, made["sha256"], source, topics))
        bases[source.sha256] = _base_resource(source.file, source.sha256, pin.variants[base["variant"]].title)
    compilers = frozenset(overlay["compiler"] for overlay in data["overlays"].values())
    return _Set(pin.name, python, tuple(wheels), bases, compilers)


def _package(package: Package, folder: Path) -> ReleasedWheel:
    path = folder / WHEELS / package.path.name
    link(package.path, path)
    return ReleasedWheel(path, file_sha256(path), None, ())


def _describe(folder: Path, asked: Asked, sets: Sequence[_Set], package: Package, revision: str) -> None:
    """Write what stands beside the wheels."""
    from castoff.release.sbom import sbom  # noqa: PLC0415  # castoff's package goes without cyclonedx

    wheels = [*(wheel for part in sets for wheel in part.wheels), _package(package, folder)]
    version = package.plans[0].version
    write_index(folder, wheels)
    (folder / REQUIREMENTS).mkdir()
    for pin in {part.pin: None for part in sets}:
        lines = requirement_lines([wheel for part in sets if part.pin == pin for wheel in part.wheels])
        (folder / REQUIREMENTS / f"{pin}.txt").write_text(lines, encoding="utf-8")
    (folder / SBOM).write_text(sbom(wheels, version, release_date(asked.root / "CHANGELOG.md")), encoding="utf-8")
    provenance = _provenance(asked, sets, package, wheels, revision)
    (folder / PROVENANCE).write_text(provenance.text(), encoding="utf-8")
    write_sums(folder, {wheel.path.relative_to(folder).as_posix(): wheel.sha256 for wheel in wheels})


def _provenance(
    asked: Asked, sets: Sequence[_Set], package: Package, wheels: Sequence[ReleasedWheel], revision: str
) -> Statement:
    inputs = {key: base for part in sets for key, base in part.bases.items()}
    for base in package.bases:
        inputs[base.pinned.sha256] = _base_resource(
            base.path.name, base.pinned.sha256, _variant(base, package.plans).title
        )
    compilers = {name for part in sets for name in part.compilers}
    compilers |= {package.compiler.version} if package.compiler is not None else set()
    return statement(
        subject=[
            Resource(name=f"{WHEELS}/{wheel.path.name}", digest={"sha256": wheel.sha256})
            for wheel in sorted(wheels, key=lambda wheel: wheel.path.name)
        ],
        inputs=[tree_resource(revision, asked.repository), *(inputs[key] for key in sorted(inputs))],
        asked={"wheels": [f"pin {part.pin} for CPython {part.python}" for part in sets]},
        tools={"compilers": sorted(compilers), "zlib": [zlib.ZLIB_RUNTIME_VERSION]},
        builder=asked.builder,
        version=package.plans[0].version,
    )


def _variant(base: BaseWheel, plans: Sequence[Plan]) -> Variant:
    plan = next(plan for plan in plans if base.pinned in plan.pin.pinned)
    return plan.pin.variants[base.pinned.variant]


def _base_resource(file: str, sha256: str, title: str) -> Resource:
    name, version = file.split("-")[:2]
    uri = f"pkg:pypi/{canonicalize_name(name)}@{quote(version)}?file_name={quote(file)}"
    return Resource(name=file, uri=uri, digest={"sha256": sha256}, annotations={"build": title})
