"""The cache: everything that is kept between builds, under the hash of its inputs.

Nothing in it is ever changed in place. A folder appears by one rename, under a lock, so two builds
can run at the same time, and a killed one leaves nothing that looks finished.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from castoff.core.console import Console


def link(source: Path, target: Path) -> None:
    """Put a file in a second place, without a copy where the file system can."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


@dataclass(frozen=True)
class Entry:
    """Something in the cache that can be removed by itself."""

    kind: str  # the folder of its kind, such as "environments"
    path: Path
    used: float  # when it was used last, or made, in seconds since the epoch


class Cache:
    """The cache's folder and its locks.

    Args:
        console: Reports that another build is being waited for.
    """

    def __init__(self, root: Path, console: Console) -> None:
        self.root = root
        self._console = console

    def wheel(self, sha256: str) -> Path:
        """Return the folder of the wheel with that hash."""
        return self.root / "sha256" / sha256

    def unpacked(self, key: str) -> Path:
        """Return the folder of what was unpacked from a wheel."""
        return self.root / "unpacked" / key

    def overlay(self, key: str) -> Path:
        """Return the folder of a compiled overlay."""
        return self.overlays / key

    @property
    def overlays(self) -> Path:
        """The folder of all compiled overlays."""
        return self.root / "overlays"

    @property
    def environments(self) -> Path:
        """The folder of all environments."""
        return self.root / "environments"

    @property
    def tpu(self) -> Path:
        """The folder of what the TPU compiler answered."""
        return self.root / "tpu"

    @property
    def objects(self) -> Path:
        """The folder of all compiled objects."""
        return self.root / "objects"

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock, waiting for another build where needed.

        Args:
            name: What is locked; one file name.
        """
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            self._console.note(f"waiting for another build to finish with {name}")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """Provide an empty folder on the cache's file system, and remove it afterwards.

        The caller holds the lock of the same name, so whatever is there was left by a killed build.
        """
        folder = self.root / "tmp" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def ensure(self, folder: Path, name: str, make: Callable[[Path], None]) -> Path:
        """Return a folder of the cache; make it first if it does not exist.

        Args:
            folder: The folder, one of this cache's.
            make: Fills the empty folder that it is given.
        """
        if folder.is_dir():
            return folder
        with self.lock(name):
            if not folder.is_dir():
                with self.scratch(name) as scratch:
                    filled = scratch / "filled"
                    filled.mkdir()
                    make(filled)
                    self.keep_folder(folder, filled)
        return folder

    def keep_folder(self, folder: Path, filled: Path) -> None:
        """Move a finished folder, which is on the cache's file system, into the cache.

        Args:
            folder: Its path in the cache, whose lock the caller holds.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        filled.rename(folder)

    def keep_file(self, path: Path, finished: Path) -> None:
        """Move a finished file, which is on the cache's file system, into the cache, which may have it already."""
        path.parent.mkdir(parents=True, exist_ok=True)
        finished.replace(path)

    def trim(self, folder: Path, *, most: int, unused: float = 0) -> None:
        """Remove what was not used for longest from a folder of the cache.

        Args:
            unused: For how many seconds what goes must have been unused.
        """
        entries = []
        for path in folder.iterdir() if folder.is_dir() else ():
            with suppress(FileNotFoundError):  # another build removed it at the same time
                entries.append((path.stat().st_mtime_ns, path))
        for used, path in sorted(entries, reverse=True)[most:]:
            if used > (time.time() - unused) * 1e9:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Return everything that the cache holds, by kind and age. Locks are none: a build may wait for one."""
        found = []
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            # What ci/test.sh left behind when it was killed is one entry; of other kinds each folder or file is.
            parts = [folder] if folder.name.startswith("test.") else list(folder.iterdir()) if folder.is_dir() else []
            for path in parts if folder.name != "locks" else ():
                with suppress(FileNotFoundError):  # another build removed it at the same time
                    kind = "tests" if path == folder else folder.name
                    found.append(Entry(kind, path, path.lstat().st_mtime))
        return sorted(found, key=lambda entry: (entry.kind, entry.used))

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        if entry.path.is_dir() and not entry.path.is_symlink():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            entry.path.unlink(missing_ok=True)


def sizes(entries: list[Entry]) -> dict[str, int]:
    """Return the bytes on the disk of each kind of entry; what several hard links share counts once, for the first."""
    seen: set[tuple[int, int]] = set()
    found: dict[str, int] = {}
    for entry in entries:
        found[entry.kind] = found.get(entry.kind, 0) + _bytes(entry.path, seen)
    return found


def _bytes(path: Path, seen: set[tuple[int, int]]) -> int:
    """Return the bytes that a file or folder takes, without files that were `seen`; adds its files to these."""
    total = 0
    todo = [path]
    while todo:
        with suppress(FileNotFoundError, NotADirectoryError):
            here = todo.pop()
            status = here.lstat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
            if here.is_dir() and not here.is_symlink():
                todo += [Path(each.path) for each in os.scandir(here)]
    return total
