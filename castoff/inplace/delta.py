"""Delta: what the patched wheels of a pin have that the stock ones have not, as files of castoff's package.

It is the same for every CPython and for upstream's CPU and CUDA builds: Python files, and overlays that include
no Python.h. What differs between those is made from the installed files: version.py and the metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from castoff.core.errors import InstallError

FOLDER = "deltas"
"""The folder of all deltas, in the tree of the package."""


@dataclass(frozen=True)
class Part:
    """The difference of one project."""

    version: str  # of the stock wheel
    patched: str  # of the patched one
    commit: str  # upstream's
    requires: tuple[str, ...]  # what the patched wheel requires besides
    stock: dict[str, str]  # the digest that each changed member has in the stock wheel
    new: dict[str, str]  # the digest of each member that is changed or added


@dataclass(frozen=True)
class Delta:
    """The difference of a pin."""

    pin: str
    castoff: str  # the version of castoff, such as "castoff.1"
    cxx11_abi: int  # that of the libraries for which the overlays are made
    parts: dict[str, Part]  # by project

    @property
    def key(self) -> str:
        """One hash over everything in it."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """Return it as JSON, without the files."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def file(self, deltas: Path, member: str) -> Path:
        """Return the file of a changed or added member."""
        return deltas / self.pin / "files" / member


def read_deltas(deltas: Path) -> tuple[Delta, ...]:
    """Read all deltas of a folder, newest pin first.

    Raises:
        InstallError: There are none: this is castoff's tree and not its package.
    """
    found = [_read(path) for path in deltas.glob("*/delta.json")]
    if not found:
        raise InstallError(
            "this castoff has no compiled overlays to install",
            expected=f"those of castoff's package, in {deltas}",
            found="none",
            next_step="Build the package, ./build.sh --target package, and pip install dist/package/castoff-*.whl; "
            "or install the wheels of ./build.sh --target cpu.",
        )
    return tuple(sorted(found, key=lambda delta: tuple(map(int, delta.pin.split("."))), reverse=True))


def write_delta(deltas: Path, delta: Delta, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a delta and its files."""
    for member, data in files:
        path = delta.file(deltas, member)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (deltas / delta.pin / "delta.json").write_text(delta.text(), encoding="utf-8")


def _read(path: Path) -> Delta:
    data = json.loads(path.read_text(encoding="utf-8"))
    parts = {name: Part(**{**row, "requires": tuple(row["requires"])}) for name, row in data.pop("parts").items()}
    return Delta(**data, parts=parts)
