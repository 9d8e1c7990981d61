"""Repack: a patched wheel from the stock one, the topics' files and the overlay."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.apply import Applied
from castoff.builder.compile import Overlay
from castoff.builder.fetch import BaseWheel, file_sha256
from castoff.core.console import Console
from castoff.formats.splice import splice
from castoff.formats.wheels import (
    dist_info,
    replaced_version,
    replaced_version_module,
    updated_record,
    with_requirements,
)


@dataclass(frozen=True)
class PatchedWheel:
    """A wheel that castoff made."""

    project: str  # "torch" or "torch_xla"
    path: Path
    version: str
    sha256: str  # its hash
    base: BaseWheel  # the upstream wheel that it was made from
    renames: dict[str, str]  # members that only have another name now, by their old names
    changed: tuple[str, ...]  # members that differ from upstream's, sorted, by their new names
    added: tuple[str, ...]  # members that upstream's does not have, sorted


def repack(
    base: BaseWheel,
    version: str,
    applied: Applied,
    *,
    requires: Sequence[str],
    overlay: Overlay | None,
    folder: Path,
    console: Console,
) -> PatchedWheel:
    """Write a patched wheel.

    Args:
        version: The version of the new one.
        applied: Its Python files with the topics.
        requires: Requirements besides those of upstream's wheel.
        overlay: Its overlay, if it has one.

    Returns:
        The wheel.

    Raises:
        RepackError: The upstream wheel does not have the expected form.
    """
    project = base.pinned.project
    with zipfile.ZipFile(base.path) as archive:
        names = archive.namelist()
        old_info = dist_info(names)
        new_info = f"{project}-{version}.dist-info"
        renames = {name: new_info + name.removeprefix(old_info) for name in names if name.startswith(f"{old_info}/")}
        module = f"{project}/version.py"
        contents = {**applied.changed, **applied.added, **(overlay.members() if overlay is not None else {})}
        contents[module] = replaced_version_module(contents.get(module, archive.read(module)), version)
        metadata = replaced_version(archive.read(f"{old_info}/METADATA"), version)
        contents[f"{new_info}/METADATA"] = with_requirements(metadata, requires)
        record = f"{new_info}/RECORD"
        contents[record] = updated_record(archive.read(f"{old_info}/RECORD"), renames, contents)
    target = folder / wheel_name(base.path.name, version)
    with console.progress(f"writing {project}") as advance:
        splice(base.path, target, contents=contents, renames=renames, modes=_modes(contents), advance=advance)
    present = {renames.get(name, name) for name in names}
    return PatchedWheel(
        project=project,
        path=target,
        version=version,
        sha256=file_sha256(target),
        base=base,
        renames=renames,
        changed=tuple(sorted(contents.keys() & present)),
        added=tuple(sorted(contents.keys() - present)),
    )


def wheel_name(base: str, version: str) -> str:
    """Return the file name of a wheel with another version.

    Args:
        base: The name of the wheel it is made from.
    """
    name, _, tags = base.split("-", 2)
    return f"{name}-{version}-{tags}"


def _modes(contents: Mapping[str, bytes]) -> dict[str, int]:
    return {name: 0o755 for name in contents if name.endswith(".so")}
