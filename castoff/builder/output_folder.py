"""The output folder, which is replaced in one step: at any moment it is either the old or the new one."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from castoff.core.console import Console
from castoff.core.errors import DistError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True)
class Workplace:
    """The folders of a running build."""

    folder: Path  # the empty folder that will replace the output folder
    target: Path  # the output folder
    logs: Path  # where the logs of the programs that the build runs go


@contextmanager
def workplace(out: Path, name: str, console: Console) -> Iterator[Workplace]:
    """Provide the folders to build one output folder, and replace that at the end.

    If the body raises, the old output folder is unchanged and the logs are kept.

    Args:
        out: The folder of all output folders, ``dist``.
        name: The name of this one, such as "2.9-cpu".
        console: Reports that another build is being waited for.

    Raises:
        DistError: The output folder's path is a file or a symbolic link.
    """
    target = out / name
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise DistError(
            f"{target} is in the way",
            expected="a folder that castoff built, or nothing",
            found="a file or a symbolic link",
            next_step="Move it away, or choose another folder with --out.",
        )
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / f".{name}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        console.note(f"waiting for another build of {target} to finish")
        lock.acquire()
    try:
        _recover(out, name)
        place = Workplace(out / f".{name}.new", target, out / "logs" / name)
        shutil.rmtree(place.logs, ignore_errors=True)
        place.folder.mkdir()
        try:
            yield place
            publish(place.folder, target)
        finally:
            shutil.rmtree(place.folder, ignore_errors=True)
        shutil.rmtree(place.logs, ignore_errors=True)
        if not any(place.logs.parent.glob("*")):
            shutil.rmtree(place.logs.parent, ignore_errors=True)
    finally:
        lock.release()


def publish(folder: Path, target: Path) -> None:
    """Replace a folder by a finished one, in one step.

    Args:
        folder: The finished folder; afterwards this path is the old one, or nothing.
    """
    for path in folder.iterdir():
        _to_disk(path)
    _to_disk(folder)
    if not target.exists():
        folder.rename(target)
    elif not _exchange(folder, target):
        # A file system that cannot exchange: a build that is killed between the two steps is
        # repaired by the next one, which finds the old folder under this name.
        old = target.parent / f".{target.name}.old"
        target.rename(old)
        folder.rename(target)
        shutil.rmtree(old)
    _to_disk(target.parent)


def _recover(out: Path, name: str) -> None:
    """Remove what a killed build left. The lock is held: no other build is using it."""
    old = out / f".{name}.old"
    if old.exists() and not (out / name).exists():
        old.rename(out / name)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(out / f".{name}.new", ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False if the system cannot."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
