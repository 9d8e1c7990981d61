"""What is where in the folder of a release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.fetch import file_sha256

WHEELS = "wheels"
"""The folder of all wheels, and of their metadata."""

INDEX = "simple"
"""The folder of the index."""

REQUIREMENTS = "requirements"
"""The folder of requirements files, one for each pin: its wheels, by hash."""

SUMS = "SHA256SUMS"
"""The hashes of all other files, as sha256sum reads them."""

SIGNATURE = f"{SUMS}.sigstore.json"
"""The signature of SHA256SUMS, and so of everything. The workflow of releases adds it; no other file may be added."""

SBOM = "sbom.cdx.json"
PROVENANCE = "provenance.intoto.json"


@dataclass(frozen=True)
class Input:
    """An upstream wheel that a wheel was made from."""

    file: str
    sha256: str
    version: str  # upstream's
    repository: str  # upstream's source
    commit: str


@dataclass(frozen=True)
class ReleasedWheel:
    """A wheel of a release."""

    path: Path
    sha256: str
    base: Input | None  # None of castoff's own package, which has files of several
    topics: tuple[str, ...]  # the topics in it


def released_files(folder: Path) -> list[str]:
    """Return every file of a release but the list of hashes and its signature, as paths in it."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(set(found) - {SUMS, SIGNATURE})


def write_sums(folder: Path, known: Mapping[str, str]) -> None:
    """Write the hashes of all files.

    Args:
        known: Hashes that were found before, by path.
    """
    lines = [f"{known.get(name) or file_sha256(folder / name)}  {name}\n" for name in released_files(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def requirement_lines(wheels: Sequence[ReleasedWheel]) -> str:
    """Return a requirements file that accepts these wheels only, by hash: those of a pin, for every CPython."""
    hashes: dict[str, list[str]] = {}
    for wheel in wheels:
        project, version = wheel.path.name.split("-")[:2]
        hashes.setdefault(f"{project}=={version}", []).append(wheel.sha256)
    return "".join(
        " \\\n    ".join([wanted, *(f"--hash=sha256:{value}" for value in sorted(found))]) + "\n"
        for wanted, found in sorted(hashes.items())
    )
