"""Target: the environment to be patched, and what of it castoff refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from castoff.builder.compile import cxx11_abi
from castoff.core.errors import InstallError, RepackError
from castoff.core.runner import Runner
from castoff.formats.wheels import Row, parse_record
from castoff.inplace.delta import Delta, Part
from castoff.inplace.swap import file_digest
from castoff.model.pin import PROJECTS

_QUESTION = """
import importlib.util, json, os, platform, sys, sysconfig
spec = importlib.util.find_spec("torch")
print(json.dumps({
    "machine": " ".join([platform.python_implementation(), platform.system(), platform.machine()]),
    "site": sysconfig.get_path("platlib"),
    "torch": list(spec.submodule_search_locations or []) if spec else [],
    "conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
}))
"""
_MACHINE = "CPython Linux x86_64"
_SHOWN = 5


@dataclass(frozen=True)
class Target:
    """An environment."""

    python: Path
    site: Path  # the folder of its packages
    torch: tuple[Path, ...]  # where its Python finds torch
    conda: bool  # whether it is conda's


@dataclass(frozen=True)
class Installed:
    """An installed wheel."""

    project: str
    site: Path
    info: Path  # its dist-info folder
    rows: dict[str, Row]  # its RECORD, by path

    @property
    def version(self) -> str:
        """Its version, such as "2.9.0+cpu"."""
        return self.info.name.removesuffix(".dist-info").partition("-")[2]

    @property
    def stock(self) -> str:
        """Upstream's release, as pip takes it: "torch==2.9.0"."""
        return f"{self.project}=={self.version.partition('+')[0]}"

    @property
    def is_castoff(self) -> bool:
        """Whether it is a patched one."""
        return "+castoff" in self.version

    def own(self, name: str) -> str:
        """Return the text of a file in the dist-info folder, or ""."""
        path = self.info / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def find_target(python: Path, runner: Runner) -> Target:
    """Ask a Python where its packages are.

    Raises:
        InstallError: It does not run, or is no CPython for x86-64 Linux.
    """
    completed = runner.run([python, "-I", "-c", _QUESTION], name="target", check=False)
    try:
        answer = json.loads(completed.output.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise InstallError(
            f"{python} does not run",
            expected="the Python of an environment",
            found=completed.tail,
            next_step="Name it with --python ENVIRONMENT/bin/python.",
        ) from error
    if answer["machine"] != _MACHINE:
        _refuse(f"{python} is not for these overlays", _MACHINE, answer["machine"], "Use such a Python.")
    return Target(python, Path(answer["site"]), tuple(map(Path, answer["torch"])), answer["conda"])


def find_installed(target: Target, project: str) -> Installed | None:
    """Return an installed wheel, or None if there is none.

    Raises:
        InstallError: It is there more than once, or not a wheel that an installer put there.
    """
    infos = sorted(path.parent for path in target.site.glob(f"{project}-*.dist-info/METADATA"))
    if len(infos) > 1:
        names = ", ".join(info.name for info in infos)
        _refuse(
            f"{project} is installed more than once", "one dist-info folder", names, f"pip uninstall {project}, twice."
        )
    if not infos:
        return None
    try:
        rows = {row.path: row for row in parse_record((infos[0] / "RECORD").read_bytes())}
    except (FileNotFoundError, RepackError, UnicodeDecodeError):
        _refuse(f"{infos[0]} has no RECORD", "a wheel, installed by pip or uv", "another way", _reinstall(project))
    return Installed(project, target.site, infos[0], rows)


def check_target(target: Target, deltas: Sequence[Delta]) -> tuple[Delta, list[Installed]]:
    """Check that an environment has the stock wheels of a pin, as they were installed.

    Returns:
        What the pin's patched wheels have that these have not, and the installed wheels.

    Raises:
        InstallError: What was found instead. Nothing is changed.
    """
    found = {project: find_installed(target, project) for project in PROJECTS}
    wheels = [wheel for wheel in found.values() if wheel is not None]
    for project in PROJECTS:
        if found[project] is None and not _is_alone(wheels, deltas):
            where = ", ".join(map(str, target.torch)) if project == "torch" else ""
            there = f"another one, at {where}" if where else "none"
            _refuse(f"{target.site} has no {project}", f"{project}, installed there", there, _install(deltas))
    for wheel in wheels:
        _check_kind(target, wheel)
    delta = choose_delta(wheels, deltas)
    for wheel in wheels:
        _check_files(wheel, delta.parts[wheel.project])
    _check_writable(target.site, delta)
    abi = cxx11_abi(target.site / "torch" / "lib" / "libc10.so")
    if abi != delta.cxx11_abi:
        _refuse("this torch has another C++ ABI", f"_GLIBCXX_USE_CXX11_ABI={delta.cxx11_abi}", str(abi), "Use PyPI's.")
    return delta, wheels


def choose_delta(wheels: Sequence[Installed], deltas: Sequence[Delta]) -> Delta:
    """Return the delta for installed wheels.

    Raises:
        InstallError: There is none for their versions.
    """
    found = {wheel.project: wheel.version.partition("+")[0] for wheel in wheels}
    fitting = [delta for delta in deltas if _fits(delta, found)]
    if not fitting:
        _refuse(
            "these are not the releases of a pin",
            " or\n".join(_versions(delta) for delta in deltas),
            ", ".join(f"{wheel.project} {wheel.version}" for wheel in wheels),
            _install(deltas),
        )
    return fitting[0]


def _fits(delta: Delta, found: Mapping[str, str]) -> bool:
    return all(name in delta.parts and delta.parts[name].version == version for name, version in found.items())


def _is_alone(wheels: Sequence[Installed], deltas: Sequence[Delta]) -> bool:
    """Tell whether what is installed is a torch that a pin has without a torch_xla."""
    found = {wheel.project: wheel.version.partition("+")[0] for wheel in wheels}
    return any(delta.parts.keys() == found.keys() and _fits(delta, found) for delta in deltas)


def _check_kind(target: Target, wheel: Installed) -> None:
    """Refuse what is not an upstream wheel that pip or uv has installed."""
    name, place = wheel.project, target.site / wheel.project
    if wheel.is_castoff:
        expected = "stock torch and torch_xla"
        _refuse(f"{name} is castoff's already, from a wheel", expected, wheel.version, "Nothing is left to do.")
    if wheel.own("INSTALLER").strip() == "conda" or (
        target.conda and any((target.site.parents[2] / "conda-meta").glob(f"*{name.replace('_', '-')}-[0-9]*.json"))
    ):
        _refuse(f"{name} is conda's", "upstream's wheel, from pip or uv", "conda's build", _reinstall(wheel.stock))
    if '"editable": true' in wheel.own("direct_url.json") or f"{name}/__init__.py" not in wheel.rows:
        _refuse(f"{name} is editable", "upstream's wheel", "an installation of a source tree", _reinstall(wheel.stock))
    if place.is_symlink() or (name == "torch" and target.torch and place not in target.torch):
        found = place.resolve() if place.is_symlink() else target.torch[0]
        _refuse(f"this Python takes {name} from elsewhere", str(place), str(found), "Use an environment of its own.")


def _check_files(wheel: Installed, part: Part) -> None:
    """Compare commit, sizes, and the digests of the files that will change."""
    version_module = wheel.site / wheel.project / "version.py"
    if part.commit not in version_module.read_text(encoding="utf-8"):
        found = f"{version_module} does not name it"
        _refuse(f"{wheel.project} is another build", f"upstream's commit {part.commit}", found, _reinstall(wheel.stock))
    # Not of scripts: they name their interpreter.
    sizes = {name: row.size for name, row in wheel.rows.items() if row.size and not name.startswith("../")}
    changed = [name for name, size in sizes.items() if _size(wheel.site / name) not in {None, size}]
    touched = {*part.stock, f"{wheel.project}/version.py", f"{wheel.info.name}/METADATA"}
    for name in sorted(touched):
        digest = wheel.rows[name].digest if name in wheel.rows else ""
        if digest != file_digest(wheel.site / name) or digest != part.stock.get(name, digest):
            changed.append(name)
    changed += [name for name in part.new if name not in part.stock and os.path.lexists(wheel.site / name)]
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        found = f"changed since: {', '.join(changed[:_SHOWN])}{more}"
        _refuse(f"{wheel.project} was modified", "the files of upstream's wheel", found, _reinstall(wheel.stock))


def _check_writable(site: Path, delta: Delta) -> None:
    folders = {site, *((site / name).parent for part in delta.parts.values() for name in part.new)}
    for folder in sorted(folders):
        if folder.is_dir() and not os.access(folder, os.W_OK):
            found = "it is read-only for this user"
            _refuse(f"{folder} cannot be written", "an environment of yours", found, "Run castoff as its owner.")


def _size(path: Path) -> str | None:
    try:
        return str(path.stat().st_size)
    except OSError:  # slimmed images lack files that they do not need
        return None


def _versions(delta: Delta) -> str:
    return " with ".join(f"{project} {part.version}" for project, part in delta.parts.items())


def _install(deltas: Sequence[Delta]) -> str:
    pairs = [" ".join(f"{project}=={part.version}" for project, part in delta.parts.items()) for delta in deltas]
    return f"Install a pair first, with pip or uv: pip install {pairs[0]}"


def _reinstall(*wheels: str) -> str:
    return f"Install upstream's wheels, with pip or uv: pip install --force-reinstall --no-deps {' '.join(wheels)}"


def _refuse(summary: str, expected: str, found: str, next_step: str) -> NoReturn:
    raise InstallError(summary, expected=expected, found=found, next_step=next_step)
