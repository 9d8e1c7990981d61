"""Fetch: upstream's wheels, by hash, into the cache.

pip downloads them, so its configured indexes, proxies and certificates are used.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.package_index import PLATFORMS, Release
from castoff.core.cache import Cache
from castoff.core.console import Advance, Console, no_advance
from castoff.core.context import Context
from castoff.core.errors import FetchError
from castoff.model.pin import Pin, PinnedWheel, Variant

_BLOCK = 1 << 20
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


@dataclass(frozen=True)
class BaseWheel:
    """An upstream wheel in the cache, with its hash checked."""

    path: Path
    pinned: PinnedWheel  # what the pin says of it


@dataclass(frozen=True)
class _Wanted:
    """A wheel to be fetched."""

    project: str
    version: str
    python: str
    platform: str
    accepted: Sequence[PinnedWheel]
    variants: Mapping[str, Variant]

    @property
    def title(self) -> str:
        return f"{self.project} {self.version} for CPython {self.python}"

    @property
    def expectation(self) -> str:
        rows = [f"  {wheel.sha256}  {self.variants[wheel.variant].title}" for wheel in self.accepted]
        return "a wheel with one of these sha256:\n" + "\n".join(rows)

    def next_step(self, log: Path) -> str:
        indexes = [self.variants[wheel.variant].index for wheel in self.accepted]
        others = [f"--index {index}" for index in indexes if index is not None]
        also = f" (or add {others[0]})" if others else ""
        return (
            f"Check the network and pip's index (`pip config list`), or give an index that has the wheel "
            f"with --index{also}, then run the same command again. pip's log: {log}"
        )


def file_sha256(path: Path, advance: Advance = no_advance) -> str:
    """Return a file's sha256.

    Args:
        advance: Called with the progress.
    """
    digest = hashlib.sha256()
    total = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            advance(done, total)
    return digest.hexdigest()


def cached_path(cache: Cache, pinned: PinnedWheel) -> Path | None:
    """Return the cached file of a wheel, unchecked, or None."""
    return next(iter(sorted(cache.wheel(pinned.sha256).glob("*.whl"))), None)


def fetch_wheel(
    pin: Pin,
    project: str,
    python: str,
    *,
    indexes: Sequence[str],
    context: Context,
    only: str | None = None,
) -> BaseWheel:
    """Return an upstream wheel, from the cache or downloaded.

    Args:
        python: The CPython version that it is for.
        indexes: Package indexes to use besides those in pip's configuration.
        only: The hash of the only wheel to accept; any of the pin's if None.

    Raises:
        PinError: The pin has no wheel for that CPython, or none with that hash.
        FetchError: It is not in the cache and cannot be downloaded.
    """
    accepted = pin.accepted(project, python, only=only)
    # A user who gives the index of one variant wants that variant, even if another is in the cache.
    accepted = tuple(wheel for wheel in accepted if pin.variants[wheel.variant].index in indexes) or accepted
    version = pin.upstream(project).version
    return _fetch(_Wanted(project, version, python, pin.platform, accepted, pin.variants), indexes, context)


def fetch_wheels(
    pin: Pin,
    python: str,
    *,
    indexes: Sequence[str],
    context: Context,
    only: Mapping[str, str] | None = None,
) -> dict[str, BaseWheel]:
    """Return the upstream wheels of a pin, by project.

    Args:
        python: The CPython version that they are for.
        indexes: Package indexes to use besides those in pip's configuration.
        only: By project, the hash of the only wheel to accept; any of the pin's if there is none.

    Raises:
        PinError: The pin has no wheel for that CPython, or none with that hash.
        FetchError: One is not in the cache and cannot be downloaded.
    """
    return {
        project: fetch_wheel(
            pin, project, python, indexes=indexes, context=context, only=only.get(project) if only else None
        )
        for project in pin.projects
    }


def fetch_libtpu(pin: Pin, python: str, *, indexes: Sequence[str], context: Context) -> BaseWheel:
    """Return the wheel of the pin's libtpu, from the cache or downloaded.

    Args:
        python: The CPython version that it is for.
        indexes: Package indexes to use besides those in pip's configuration.

    Raises:
        PinError: The pin has no libtpu for that CPython.
        FetchError: It is not in the cache and cannot be downloaded.
    """
    accepted = (PinnedWheel(project="libtpu", python=python, variant="tpu", sha256=pin.libtpu_sha256(python)),)
    variants = {"tpu": Variant(title="the TPU runtime, as on PyPI")}
    tpu = pin.for_tpu()
    return _fetch(_Wanted("libtpu", tpu.libtpu, python, tpu.platform, accepted, variants), indexes, context)


def fetch_release(release: Release, *, indexes: Sequence[str], context: Context) -> BaseWheel:
    """Return a wheel that is in no pin yet, by the hash that the package index states.

    Args:
        indexes: Package indexes to use besides those in pip's configuration.

    Raises:
        FetchError: It is not in the cache and cannot be downloaded.
    """
    accepted = (PinnedWheel(project=release.project, python=release.python, variant="any", sha256=release.sha256),)
    variants = {"any": Variant(title="as the package index has it")}
    wanted = _Wanted(release.project, release.version, release.python, PLATFORMS[0], accepted, variants)
    return _fetch(wanted, indexes, context)


def _fetch(wanted: _Wanted, indexes: Sequence[str], context: Context) -> BaseWheel:
    name = f"{wanted.project}-{wanted.version}-cp{wanted.python.replace('.', '')}"
    with context.cache.lock(f"fetch-{name}"):
        base = _from_cache(wanted.accepted, context.cache, context.console)
        if base is None:
            with context.cache.scratch(f"fetch-{name}") as scratch:
                base = _download(wanted, indexes, scratch, context)
    context.console.note(f"{base.path.name} ({wanted.variants[base.pinned.variant].title})")
    return base


def _from_cache(accepted: Sequence[PinnedWheel], cache: Cache, console: Console) -> BaseWheel | None:
    for pinned in accepted:
        path = cached_path(cache, pinned)
        if path is None:
            continue
        with console.progress(f"checking {pinned.project}") as advance:
            found = file_sha256(path, advance)
        if found == pinned.sha256:
            return BaseWheel(path, pinned)
        console.warn(
            f"{path.name} in the cache is damaged and was removed: "
            f"expected sha256 {pinned.sha256}, found {found}; fetching it again"
        )
        shutil.rmtree(path.parent)
    return None


def _download(wanted: _Wanted, indexes: Sequence[str], scratch: Path, context: Context) -> BaseWheel:
    requirements = scratch / "requirements.txt"
    hashes = " ".join(f"--hash=sha256:{wheel.sha256}" for wheel in wanted.accepted)
    requirements.write_text(f"{wanted.project}=={wanted.version} {hashes}\n", encoding="utf-8")
    tag = "cp" + wanted.python.replace(".", "")
    command: list[str | Path] = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "raw", "--resume-retries", "5"]
    command += ["--python-version", wanted.python, "--implementation", "cp", "--abi", tag]
    for platform in (wanted.platform, *PLATFORMS):
        command += ["--platform", platform]
    for index in indexes:
        command += ["--extra-index-url", index]
    command += ["--dest", scratch / "wheels", "--requirement", requirements]
    with context.console.progress(f"fetching {wanted.title}") as advance:
        completed = context.runner.run(
            command, name=f"fetch-{wanted.project}", check=False, on_line=_progress_reader(advance)
        )
    if completed.returncode != 0:
        said = "\n".join(line for line in completed.tail.splitlines() if not _PROGRESS.match(line))
        raise FetchError(
            f"{wanted.title} could not be fetched",
            expected=wanted.expectation,
            found=f"pip download ended with exit status {completed.returncode}:\n{said}",
            next_step=wanted.next_step(completed.log),
        )
    found = {file_sha256(path): path for path in sorted((scratch / "wheels").glob("*.whl"))}
    for pinned in wanted.accepted:
        if pinned.sha256 in found:
            return BaseWheel(_keep(found[pinned.sha256], context.cache.wheel(pinned.sha256)), pinned)
    raise FetchError(
        f"{wanted.title} is not the file that the pin names",
        expected=wanted.expectation,
        found=", ".join(f"{path.name} with sha256 {value}" for value, path in found.items()) or "no file",
        next_step=wanted.next_step(completed.log),
    )


def _progress_reader(advance: Advance) -> Callable[[str], None]:
    def read(line: str) -> None:
        match = _PROGRESS.match(line)
        if match is not None:
            advance(int(match.group(1)), int(match.group(2)))

    return read


def _keep(path: Path, folder: Path) -> Path:
    """Move a checked file into the cache, by one rename of a whole folder."""
    filled = path.parent / "filled"
    filled.mkdir()
    path.rename(filled / path.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    filled.rename(folder)
    return folder / path.name
