"""Swap: replace files of a folder so that they can be put back, and so that a run that is killed can be repaired.

A file is never written into: it may share its bytes with a package cache and other environments. New files are
staged, old ones are kept by hard link, and a journal names both before the first rename. From then on until the
last rename one file, the guard, raises an error when it is imported. ``repair`` puts back what was there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from castoff.core.cache import link
from castoff.core.console import Console
from castoff.core.errors import InstallError
from castoff.formats.wheels import record_digest

KEPT = ".castoff"
"""The folder, in that of the packages, with the journal and the files that were replaced."""

Content = bytes | Path | None
"""What a file becomes: these bytes, another file as it is, or nothing."""

_FORMAT = 1


class State(StrEnum):
    """What a journal says of the folder."""

    REPLACING = "replacing"  # files are being replaced
    REPLACED = "replaced"  # all are
    RESTORING = "restoring"  # they are being put back


@dataclass(frozen=True)
class Group:
    """The files of one package that were replaced, by their paths in the folder."""

    kept: tuple[str, ...]  # the files that were there before
    new: dict[str, str]  # the files that are there now, and the digest of each


@dataclass(frozen=True)
class Journal:
    """What was replaced, or is being replaced."""

    state: State
    guard: str  # the file that must not be imported in between
    warning: str  # its contents in between, which raise an error
    about: dict[str, str]  # of what was put in
    folders: tuple[str, ...]  # those that were made, parents first
    groups: dict[str, Group]  # by package


@contextmanager
def locked(folder: Path, console: Console) -> Iterator[None]:
    """Let one process at a time change a folder; no file of the lock is left behind.

    Args:
        console: Reports that another process is being waited for.
    """
    path = folder / f"{KEPT}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.note(f"waiting for another castoff that changes {folder}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        os.close(descriptor)  # that was the file of a process that has ended since
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def read_journal(folder: Path) -> Journal | None:
    """Return what was replaced in a folder, or None if nothing was.

    Raises:
        InstallError: The journal is of another castoff, or damaged.
    """
    path = folder / KEPT / "journal.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("format") != _FORMAT:
            raise ValueError("another format")
        groups = {name: Group(tuple(row["kept"]), dict(row["new"])) for name, row in data.pop("groups").items()}
        return Journal(
            State(data["state"]), data["guard"], data["warning"], data["about"], tuple(data["folders"]), groups
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InstallError(
            f"{path} cannot be read",
            expected=f"a journal of format {_FORMAT}",
            found=f"{type(error).__name__}: {error}",
            next_step="Use the castoff that made it, or reinstall torch and torch_xla and remove that folder.",
        ) from error


def replace_files(
    folder: Path, changes: Mapping[str, Mapping[str, Content]], *, guard: str, warning: str, about: Mapping[str, str]
) -> Journal:
    """Replace files. The caller holds the lock, and there is no journal.

    Args:
        changes: For each package the contents of its files, by their paths in the folder.
        guard: The file that is replaced last, and until then raises an error.
        about: What is put in, for the journal.

    Raises:
        OSError: It cannot be written; everything is as it was.
    """
    journal = Journal(State.REPLACING, guard, warning, dict(about), _missing_folders(folder, changes), {})
    kept = folder / KEPT
    shutil.rmtree(kept, ignore_errors=True)  # what was left by a run that was killed before it had a journal
    try:
        for package, files in changes.items():
            journal.groups[package] = _stage(folder, files)
        _write(kept / "guard", warning.encode(), folder / guard)
        _write_journal(folder, journal)
    except BaseException:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    try:
        _put(folder, journal)
        journal = replace(journal, state=State.REPLACED)
        _write_journal(folder, journal)
    except BaseException:
        repair(folder)
        raise
    _tidy(folder, journal)
    return journal


def repair(folder: Path) -> bool:
    """Put back what was there, if a run was killed while it changed files. The caller holds the lock.

    Returns:
        Whether there was something to repair.
    """
    journal = read_journal(folder)
    if journal is None:
        return False
    if journal.state is State.REPLACED:
        _tidy(folder, journal)
        return False
    _restore(folder, journal)
    return True


def restore(folder: Path, packages: frozenset[str]) -> None:
    """Put back what was there. The caller holds the lock, and all files were replaced.

    Args:
        packages: Those to put back; of others the kept files are forgotten, since something else replaced them.
    """
    journal = read_journal(folder)
    assert journal is not None
    groups = {name: group for name, group in journal.groups.items() if name in packages}
    journal = replace(journal, state=State.RESTORING, groups=groups)
    _write_journal(folder, journal)
    _restore(folder, journal)


def edited(folder: Path, journal: Journal, package: str) -> list[str]:
    """Return the files of a package that are not as they were put, or missing."""
    return [path for path, digest in journal.groups[package].new.items() if file_digest(folder / path) != digest]


def file_digest(path: Path) -> str:
    """Return a file's hash as RECORD writes it, or "" if there is no such file."""
    return record_digest(path.read_bytes()) if path.is_file() else ""


def compiled(path: Path) -> list[Path]:
    """Return the files that Python compiled of a module."""
    return sorted((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")) if path.suffix == ".py" else []


def _stage(folder: Path, files: Mapping[str, Content]) -> Group:
    """Write the new files of a package beside, and keep the old ones."""
    new = {}
    for path, content in files.items():
        if isinstance(content, Path):
            _link(content, folder / KEPT / "new" / path)
        elif content is not None:
            _write(folder / KEPT / "new" / path, content, folder / path)
        if content is not None:
            new[path] = file_digest(folder / KEPT / "new" / path)
    present = tuple(path for path in files if os.path.lexists(folder / path))
    for path in present:
        _link(folder / path, folder / KEPT / "kept" / path)
    return Group(present, new)


def _put(folder: Path, journal: Journal) -> None:
    kept = folder / KEPT
    for made in journal.folders:
        (folder / made).mkdir(exist_ok=True)
    (kept / "guard").replace(folder / journal.guard)
    for group in journal.groups.values():
        for path in sorted({*group.kept, *group.new} - {journal.guard}):
            if path in group.new:
                (kept / "new" / path).replace(folder / path)
            else:
                (folder / path).unlink(missing_ok=True)  # its folder stays: on a full disk none could be made again
    (kept / "new" / journal.guard).replace(folder / journal.guard)


def _tidy(folder: Path, journal: Journal) -> None:
    """Remove what is not needed once all files are replaced."""
    shutil.rmtree(folder / KEPT / "new", ignore_errors=True)
    for group in journal.groups.values():
        for path in set(group.kept) - group.new.keys():
            _remove_empty(folder, folder / path)


def _restore(folder: Path, journal: Journal) -> None:
    kept = folder / KEPT
    guarded = any(journal.guard in group.kept for group in journal.groups.values())
    if guarded and os.path.lexists(kept / "kept" / journal.guard):
        with suppress(OSError):  # a full disk: without a warning, then
            _write(kept / "guard", journal.warning.encode(), folder / journal.guard)
            (kept / "guard").replace(folder / journal.guard)
    gone = []
    for group in journal.groups.values():
        back = {path for path in group.kept if not os.path.lexists(kept / "kept" / path)}  # by a run that was killed
        stale = [path.relative_to(folder).as_posix() for name in group.new for path in compiled(folder / name)]
        mine = [path for path in {*group.new, *stale} - back if path not in group.kept or path in stale]
        for path in mine:
            (folder / path).unlink(missing_ok=True)
        for path in sorted(set(group.kept) - {journal.guard}):
            _put_back(folder, path)
        gone += mine
    if guarded:
        _put_back(folder, journal.guard)
    for path in gone:
        _remove_empty(folder, folder / path)
    for made in reversed(journal.folders):
        with suppress(OSError):  # not empty: something else put files there
            (folder / made).rmdir()
    (kept / "journal.json").unlink()
    shutil.rmtree(kept, ignore_errors=True)


def _put_back(folder: Path, path: str) -> None:
    kept = folder / KEPT / "kept" / path
    if os.path.lexists(kept):  # else it is back already
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        kept.replace(folder / path)


def _remove_empty(folder: Path, path: Path) -> None:
    """Remove the folders of a file that was removed, if they are empty."""
    for parent in path.parents:
        if parent == folder:
            break
        try:
            parent.rmdir()
        except OSError:
            break


def _missing_folders(folder: Path, changes: Mapping[str, Mapping[str, Content]]) -> tuple[str, ...]:
    wanted = {
        parent
        for files in changes.values()
        for path, content in files.items()
        if content is not None
        for parent in Path(path).parents
    }
    return tuple(sorted(path.as_posix() for path in wanted if not (folder / path).is_dir()))


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        link(source, target)


def _write(path: Path, content: bytes, place: Path) -> None:
    """Write a new file, with the mode of the one whose place it is to take."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if place.is_file():
        shutil.copymode(place, path)
    elif place.suffix == ".so":
        path.chmod(path.stat().st_mode | path.stat().st_mode >> 2 & 0o111)


def _write_journal(folder: Path, journal: Journal) -> None:
    path = folder / KEPT / "journal.json"
    draft = path.with_suffix(".draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, **asdict(journal)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
