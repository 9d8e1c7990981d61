"""Install, uninstall and look at castoff in an environment that exists."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from castoff.core.console import Console
from castoff.core.errors import InstallError
from castoff.formats.wheels import (
    Row,
    parse_record,
    replaced_version,
    replaced_version_module,
    updated_record,
    with_requirements,
    write_record,
)
from castoff.inplace.delta import Delta, Part
from castoff.inplace.swap import (
    Content,
    Journal,
    State,
    compiled,
    edited,
    file_digest,
    locked,
    read_journal,
    repair,
    replace_files,
    restore,
)
from castoff.inplace.target import Installed, Target, check_target, choose_delta, find_installed
from castoff.model.pin import PROJECTS

_GUARD = "torch/version.py"
_WARNING = """raise ImportError(
    "castoff was stopped while it changed this torch. Run `castoff install` again, or `castoff uninstall`, "
    "with --python and this Python."
)
"""
_OFF = "off"
"""What the journal calls the topics that are off by default."""

_SWITCH = """
# Written by `castoff install --without`. torch imports this file before it loads a library.
import os as _os

_os.environ.setdefault("CASTOFF_DISABLE", "{}")
"""
_INSTALLERS_OWN = frozenset({"direct_url.json", "uv_cache.json", "uv_build.json"})
"""What an installer notes of the wheel that was installed; it is not this one."""


@dataclass(frozen=True)
class Result:
    """What a command did, for a person and a program."""

    text: str
    data: dict[str, object]


def install(
    target: Target,
    deltas: Sequence[Delta],
    folder: Path,
    console: Console,
    *,
    left_out: Callable[[str], Sequence[str]] | None = None,
) -> Result:
    """Make of the stock wheels of an environment the patched ones.

    Args:
        deltas: What there is to install, newest pin first.
        left_out: Gives the topics of a pin that are to be off by default; as they are, or all on, if None.

    Raises:
        InstallError: The environment is not one with stock wheels; it is unchanged.
        OSError: It cannot be written; it is unchanged.
    """
    off = ""

    def chosen(pin: str) -> str:
        return off if left_out is None else ",".join(left_out(pin))

    with _changing(target, console):
        journal = read_journal(target.site)
        if journal is not None:
            intact, off = _intact(target.site, journal), journal.about.get(_OFF, "")
            # What pip put there in the meantime must be what is wanted, before the rest is put back.
            others = [find_installed(target, project) for project in PROJECTS if project not in intact]
            there = [wheel for wheel in others if wheel is not None]
            pin = choose_delta(there, deltas).pin if there else journal.about["pin"]
            known = journal.about["key"] in {delta.key for delta in deltas}
            if intact == journal.groups.keys() and known and chosen(pin) == off:
                return _told(target, journal, "has", "already")
            console.note(f"putting back {' and '.join(sorted(intact)) or 'nothing'}, of {journal.about['castoff']}")
            restore(target.site, frozenset(intact))
        delta, wheels = check_target(target, deltas)
        off = chosen(delta.pin)
        changes = {wheel.project: _changes(wheel, delta, folder, off) for wheel in wheels}
        about = {"pin": delta.pin, "castoff": delta.castoff, "key": delta.key, _OFF: off}
        journal = replace_files(target.site, changes, guard=_GUARD, warning=_WARNING, about=about)
    return _told(target, journal, "now has", "")


def uninstall(target: Target, console: Console) -> Result:
    """Put back the stock files, byte by byte.

    Raises:
        InstallError: castoff was not installed by `castoff install`.
        OSError: It cannot be written.
    """
    with _changing(target, console) as repaired:
        journal = read_journal(target.site)
        if journal is None and not repaired:
            raise InstallError(
                f"nothing to uninstall in {target.site}",
                expected="an environment that `castoff install` has patched",
                found=_found(target),
                next_step="If castoff's wheels were installed: pip install --force-reinstall torch==… torch_xla==…",
            )
        if journal is not None:
            intact = _intact(target.site, journal)
            for project in sorted(intact):
                changed = [path for path in edited(target.site, journal, project) if not path.endswith("/RECORD")]
                if changed:
                    console.warn(f"changed since castoff put them there, and stock again now: {', '.join(changed)}")
            restore(target.site, frozenset(intact))
    return Result(f"{target.site} has {_found(target)}", {"site": str(target.site)})


def describe(target: Target) -> Result:
    """Say what an environment has: stock wheels, patched ones, or something in between."""
    journal = read_journal(target.site)
    if journal is not None and journal.state is not State.REPLACED:
        text = f"castoff was stopped while {journal.state} files: run `castoff install` or `castoff uninstall`"
        return Result(text, {"site": str(target.site), "state": journal.state.value})
    rows = []
    for project in PROJECTS:
        wheel = find_installed(target, project)
        found = wheel.version if wheel is not None else "not installed"
        how = "castoff's wheel" if wheel is not None and wheel.is_castoff else "stock" if wheel is not None else ""
        if journal is not None and project in _intact(target.site, journal):
            how = f"patched in place by {journal.about['castoff']}{_without(journal)}"
            changed = edited(target.site, journal, project)
            how += f"; changed since: {', '.join(changed)}" if changed else ""
        elif journal is not None and wheel is not None:
            how = "replaced by an installer since castoff patched it: run `castoff install` again"
        rows.append({"project": project, "version": found, "state": how})
    text = "\n".join(f"{row['project']:<10} {row['version']:<18} {row['state']}".rstrip() for row in rows)
    return Result(text, {"site": str(target.site), "state": State.REPLACED.value if journal else "", "wheels": rows})


@contextmanager
def _changing(target: Target, console: Console) -> Iterator[bool]:
    """Lock an environment and repair it; tell whether there was something to repair."""
    try:
        with locked(target.site, console):
            repaired = repair(target.site)
            if repaired:
                console.note("an earlier castoff was stopped: its changes were undone first")
            yield repaired
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}:
            raise
        raise InstallError(
            f"{target.site} cannot be written",
            expected="an environment of yours, with some free space (10 MB)",
            found=f"{error.strerror}: {error.filename or ''}",
            next_step="Correct that and run the same command again. The environment is as it was.",
        ) from error


def _intact(site: Path, journal: Journal) -> set[str]:
    """Return the projects that are still as castoff left them, as their metadata says."""
    whole = set()
    for project, group in journal.groups.items():
        metadata = [(path, digest) for path, digest in group.new.items() if path.endswith(".dist-info/METADATA")]
        if all(file_digest(site / path) == digest for path, digest in metadata):
            whole.add(project)
    return whole


def _changes(wheel: Installed, delta: Delta, folder: Path, off: str) -> dict[str, Content]:
    """Return what becomes of the files of an installed wheel."""
    part, site = delta.parts[wheel.project], wheel.site
    changes: dict[str, Content] = {name: delta.file(folder, name).read_bytes() for name in part.new}
    module = f"{wheel.project}/version.py"
    switch = _SWITCH.format(off).encode() if wheel.project == "torch" and off else b""
    changes[module] = replaced_version_module((site / module).read_bytes(), part.patched) + switch
    stale = [path.relative_to(site).as_posix() for name in changes for path in compiled(site / name)]
    changes |= _metadata(wheel, part, changes, frozenset(stale))
    return {**changes, **dict.fromkeys(stale)}


def _metadata(wheel: Installed, part: Part, contents: dict[str, Content], stale: frozenset[str]) -> dict[str, Content]:
    """Return what becomes of the dist-info folder: one of another name."""
    site, old, new = wheel.site, wheel.info.name, f"{wheel.project}-{part.patched}.dist-info"
    there = sorted(path for path in wheel.info.rglob("*") if path.is_file())
    changes: dict[str, Content] = {path.relative_to(site).as_posix(): None for path in there}
    changes |= {
        f"{new}/{path.relative_to(wheel.info).as_posix()}": path for path in there if path.name not in _INSTALLERS_OWN
    }
    metadata = replaced_version((wheel.info / "METADATA").read_bytes(), part.patched)
    changes[f"{new}/METADATA"] = with_requirements(metadata, part.requires)
    changes[f"{new}/INSTALLER"] = b"castoff\n"
    renames = {name: new + name.removeprefix(old) for name in wheel.rows if name.startswith(f"{old}/")}
    known = {name: data for name, data in {**contents, **changes}.items() if isinstance(data, bytes)}
    gone = {*stale, *(f"{new}/{name}" for name in _INSTALLERS_OWN), f"{new}/INSTALLER"}
    rows = parse_record(updated_record((wheel.info / "RECORD").read_bytes(), renames, known))
    # As an installer writes it: without a digest of what it makes itself.
    kept = [row for row in rows if row.path not in gone]
    changes[f"{new}/RECORD"] = write_record([*kept, Row(f"{new}/INSTALLER", "", "")])
    return changes


def _told(target: Target, journal: Journal, verb: str, end: str) -> Result:
    data: dict[str, object] = {"site": str(target.site), **journal.about}
    return Result(f"{target.site} {verb} {_found(target)}{_without(journal)} {end}".rstrip(), data)


def _without(journal: Journal) -> str:
    off = journal.about.get(_OFF, "")
    return f", without {off}" if off else ""


def _found(target: Target) -> str:
    wheels = [find_installed(target, project) for project in PROJECTS]
    return ", ".join(f"{wheel.project} {wheel.version}" for wheel in wheels if wheel is not None) or "no torch"
