"""Install: an environment with the wheels, made of one with the stock wheels.

The stock wheels of a pin, and what they require, are installed once (``upstream_environment``). Every other
environment of the pin begins as a copy of that one by hard links, compiled Python and all; the patched wheels,
which differ from the stock ones in few files, are laid on it file by file. ``tests/wheels`` shows that the result
is what an installer makes of them.

Of hard links follows: replace the files of an environment, never write into them.
"""

from __future__ import annotations

import email.parser
import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from castoff.builder.fetch import BaseWheel
from castoff.core.cache import link
from castoff.core.context import Context
from castoff.core.errors import CommandError, FetchError, MachineError
from castoff.core.interpreter import Interpreter
from castoff.core.pipconfig import current_uv_environment
from castoff.core.tools import tool
from castoff.formats.wheels import Row, dist_info, parse_record, write_record
from castoff.model.pin import PROJECTS

_KEPT = 16
_KEPT_SECONDS = 24 * 3600
_MOST_SECONDS = 7 * _KEPT_SECONDS
_OURS = frozenset(map(canonicalize_name, PROJECTS))
# Of an environment, what its copy has of its own.
_OWN = (
    "python",
    "python[0-9]*",
    "activate*",
    "deactivate*",
    "pyvenv.cfg",
    "lib64",
    "uv-cache",
    "castoff-finished",
    "constraints.txt",
)

Install = Callable[..., None]
"""Takes a log's name and arguments of `uv pip install`."""


def upstream_environment(
    bases: Sequence[BaseWheel],
    requires: Sequence[str],
    interpreter: Interpreter,
    *,
    indexes: Sequence[str],
    context: Context,
) -> Path:
    """Return the Python of an environment with stock wheels of a pin, made first if it is not there.

    Args:
        bases: The wheels, torch's first.
        requires: What they require, ``requirements`` of them and of the pin.
        interpreter: The CPython that it is to have.
        indexes: Package indexes besides pip's own.

    Raises:
        MachineError: There is no such CPython.
        FetchError: Something cannot be downloaded or installed.
    """
    needed = sorted(line for line in set(requires) if canonicalize_name(Requirement(line).name) not in _OURS)
    extra = [argument for index in indexes for argument in ("--extra-index-url", index)]

    def fill(python: Path, install: Install) -> None:
        if needed:
            install("dependencies", *extra, *needed)
        # Through a cache of its own, which goes: uv's would keep another 2 GB.
        own = python.parents[1] / "uv-cache"
        install("upstream", "--no-deps", "--offline", "--cache-dir", own, *(base.path for base in bases))
        shutil.rmtree(own)
        # So that its Python files are compiled once, and not in every environment made from it.
        ask = {"PJRT_DEVICE": "CPU", "PATH": os.environ.get("PATH", "")}
        modules = ", ".join(base.pinned.project for base in bases)
        context.runner.run([python, "-c", f"import {modules}"], name="import", env=ask, check=False)

    about = f"the stock wheels {' and '.join(base.path.name for base in bases)}"
    parts = [*(base.pinned.sha256 for base in bases), *needed]
    return make_environment("upstream", parts, interpreter, about, fill=fill, context=context)


def make_environment(
    kind: str,
    parts: Sequence[str],
    interpreter: Interpreter,
    about: str,
    *,
    fill: Callable[[Path, Install], None],
    context: Context,
    folder: Path | None = None,
) -> Path:
    """Return the Python of an environment, made first if it is not there.

    Args:
        parts: What it is made of; with its kind and its CPython they are its key in the cache.
        interpreter: The CPython that it is to have.
        about: What is in it, for a person.
        fill: Told its Python, and a function that runs `uv pip install`; installs what is to be in it.
        folder: Where to make it; None for the cache.

    Raises:
        MachineError: There is no such CPython.
        FetchError: Something cannot be downloaded or installed.
    """
    if interpreter.path is None:
        raise MachineError(
            f"there is no CPython {interpreter.version} for an environment with {about}",
            expected=f"CPython {interpreter.version} on PATH, in pyenv or in uv",
            found="none",
            next_step=f"Install one: uv python install {interpreter.version}, or pyenv install.",
        )
    cache, runner = context.cache, context.runner
    base = interpreter.path.resolve()
    key = hashlib.sha256("\n".join([kind, interpreter.version, str(base), *parts]).encode()).hexdigest()
    place = folder.absolute() if folder is not None else cache.environments / f"{kind}-{key[:16]}"
    python, finished = place / "bin" / "python", place / "castoff-finished"
    with cache.lock(f"environment-{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"):
        if finished.is_file() and python.exists():
            os.utime(place)  # used now
            return python
        context.console.note(f"making an environment with {about}")
        shutil.rmtree(place, ignore_errors=True)
        environment, uv = current_uv_environment(runner), tool("uv")

        def install(name: str, *arguments: str | Path) -> None:
            runner.run([uv, "pip", "install", "--python", python, *arguments], name=name, env=environment)

        try:
            runner.run([uv, "venv", "--no-project", "--python", base, place], name="venv", env=environment)
            fill(python, install)
        except BaseException as error:
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(error, CommandError):
                raise FetchError(
                    f"an environment with {about} could not be made",
                    expected="uv installs it",
                    found=error.found,
                    next_step=f"Check the network and pip's index (`pip config list`). {error.next_step}",
                ) from error
            raise
        finished.touch()
    cache.trim(cache.environments, most=_KEPT, unused=_KEPT_SECONDS)
    cache.trim(cache.environments, most=0, unused=_MOST_SECONDS)
    return python


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel requires besides its extras, as METADATA says it."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.parser.BytesParser().parsebytes(archive.read(f"{dist_info(archive.namelist())}/METADATA"))
    lines = [str(line) for line in metadata.get_all("Requires-Dist", [])]
    return [line for line in lines if "extra ==" not in str(Requirement(line).marker or "")]


def copy_environment(source: Path, target: Path) -> None:
    """Copy what is installed in an environment into an empty one, by hard links.

    Args:
        target: The Python of the other, of the same interpreter.
    """
    one, other = source.parents[1], target.parents[1]

    def place(path: str, copy: str) -> None:
        if os.path.lexists(copy):
            return
        if Path(path).parent == one / "bin":  # scripts name their interpreter by its path
            data = Path(path).read_bytes().replace(os.fsencode(one), os.fsencode(other))
            Path(copy).write_bytes(data)
            shutil.copymode(path, copy)
        else:
            link(Path(path), Path(copy))

    own = shutil.ignore_patterns(*_OWN)

    def ignore(folder: str, names: list[str]) -> set[str]:
        return own(folder, names) if Path(folder) in (one, one / "bin") else set()

    shutil.copytree(one, other, symlinks=True, dirs_exist_ok=True, copy_function=place, ignore=ignore)


def site_packages(python: Path) -> Path:
    """Return where an environment has its packages."""
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    return site


def lay_wheel(wheel: Path, base: Path, python: Path) -> None:
    """Make of an installed wheel another one that differs in some files: as if that one had been installed.

    Args:
        base: The one that is.

    Raises:
        MachineError: The wheel has scripts or data, which go elsewhere.
    """
    site = site_packages(python)
    with zipfile.ZipFile(base) as old, zipfile.ZipFile(wheel) as new:
        before, after = _members(old), _members(new)
        old_info, new_info = site / dist_info(before), site / dist_info(after)
        elsewhere = [row for row in parse_record((old_info / "RECORD").read_bytes()) if row.path.startswith("../")]
        if any(".data/" in name for name in after):
            raise MachineError(
                f"{wheel.name} has files that go beside the packages",
                expected="packages and their dist-info alone",
                found="a folder .data",
                next_step="This is a bug in castoff: please report it.",
            )
        for name in before.keys() - after.keys():
            _remove(site / name)
        shutil.rmtree(old_info)  # with what the installer put there
        for name, kind in after.items():
            if kind != before.get(name) or name.startswith(f"{new_info.name}/"):
                _remove(site / name)
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                (site / name).write_bytes(new.read(name))
                (site / name).chmod(0o755 if new.getinfo(name).external_attr >> 16 & 0o100 else 0o644)
    (new_info / "INSTALLER").write_text("castoff\n", encoding="utf-8")
    record = parse_record((new_info / "RECORD").read_bytes())
    more = [Row(f"{new_info.name}/INSTALLER", "", ""), *elsewhere]
    (new_info / "RECORD").write_bytes(write_record([*record, *more]))


def _members(archive: zipfile.ZipFile) -> dict[str, tuple[int, int]]:
    return {info.filename: (info.CRC, info.file_size) for info in archive.infolist() if not info.is_dir()}


def _remove(path: Path) -> None:
    """Remove a file, and what Python compiled of it."""
    path.unlink(missing_ok=True)
    if path.suffix == ".py":
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
