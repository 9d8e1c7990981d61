"""The manifest: what went into a build and what came out, beside the wheels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.compile import Overlay
from castoff.errors import VerifyError
from castoff.fetch import file_sha256
from castoff.pin import Pin
from castoff.repack import PatchedWheel
from castoff.topics import Topic
from castoff.verify import Verified

FORMAT = 1
"""The form of the manifest; it changes when a reader of the old form would be misled."""


@dataclass(frozen=True)
class Build:
    """A finished build, about to be described.

    Attributes:
        pin: The pin.
        target: The target.
        python: The CPython version.
        version: The version of castoff, such as "castoff.1".
        revision: The git revision of castoff's tree, or None.
        topics: The topics in it, in order.
        overlays: The compiled overlays.
        wheels: The wheels.
        verified: What was checked.
    """

    pin: Pin
    target: str
    python: str
    version: str
    revision: str | None
    topics: Sequence[Topic]
    overlays: Sequence[Overlay]
    wheels: Sequence[PatchedWheel]
    verified: Verified


def tree_revision(root: Path) -> str | None:
    """Return the git revision of castoff's own tree, or None outside of git.

    Args:
        root: The tree. Changes that are not committed show as "-dirty".
    """
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--match=", "--dirty"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return completed.stdout.strip() or None if completed.returncode == 0 else None


def manifest(build: Build) -> dict[str, object]:
    """Return the manifest of a build, as plain data."""
    return {
        "format": FORMAT,
        "castoff": build.version,
        "revision": build.revision,
        "target": build.target,
        "python": build.python,
        "pin": {
            "name": build.pin.name,
            "torch": build.pin.torch.commit,
            "torch_xla": build.pin.torch_xla.commit,
            "platform": build.pin.platform,
            "cxx11_abi": build.pin.cxx11_abi,
            "libtpu": build.pin.runtime and build.pin.runtime.libtpu,
            "jax": build.pin.runtime and build.pin.runtime.jax,
        },
        "topics": [
            {"name": topic.key, "title": topic.title, "sha256": topic.content_hash(build.pin.name)}
            for topic in build.topics
        ],
        "overlays": {
            overlay.project: {
                "file": overlay.path.name,
                "sha256": file_sha256(overlay.path),
                "key": overlay.key,
                "compiler": overlay.compiler,
                "symbols": list(overlay.symbols),
                "interposed": list(overlay.interposed),
            }
            for overlay in build.overlays
        },
        "wheels": {
            wheel.project: {
                "file": wheel.path.name,
                "version": wheel.version,
                "sha256": wheel.sha256,
                "base": {
                    "file": wheel.base.path.name,
                    "sha256": wheel.base.pinned.sha256,
                    "variant": wheel.base.pinned.variant,
                },
                "changed": list(wheel.changed),
                "added": list(wheel.added),
            }
            for wheel in build.wheels
        },
        "verified": {
            "structure": True,
            "symbol_versions": True,
            "installed": build.verified.installed,
            "skipped": build.verified.skipped,
            "interpositions": build.verified.interpositions,
        },
    }


def constraints(wheels: Sequence[PatchedWheel]) -> str:
    """Return the constraints file that keeps pip from replacing the wheels by stock ones."""
    return "".join(f"{wheel.project}=={wheel.version}\n" for wheel in wheels)


def write_manifest(path: Path, data: dict[str, object]) -> None:
    """Write a manifest."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Recorded:
    """A manifest that was read back.

    Attributes:
        pin: The pin's name.
        python: The CPython version.
        overlays: By project, what is said of its overlay.
        wheels: By project, what is said of its wheel.
    """

    pin: str
    python: str
    overlays: dict[str, RecordedOverlay]
    wheels: dict[str, RecordedWheel]


@dataclass(frozen=True)
class RecordedOverlay:
    """An overlay in a manifest; see ``Overlay``."""

    sha256: str
    key: str
    compiler: str
    symbols: tuple[str, ...]
    interposed: tuple[str, ...]


@dataclass(frozen=True)
class RecordedWheel:
    """A wheel in a manifest; see ``PatchedWheel``."""

    file: str
    version: str
    sha256: str
    base_sha256: str
    changed: tuple[str, ...]
    added: tuple[str, ...]


def read_manifest(path: Path) -> Recorded:
    """Read a manifest back.

    Args:
        path: The file ``manifest.json``.

    Raises:
        VerifyError: It is missing or not a manifest of this form.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}")
        return Recorded(
            pin=data["pin"]["name"],
            python=data["python"],
            overlays={
                project: RecordedOverlay(
                    sha256=overlay["sha256"],
                    key=overlay["key"],
                    compiler=overlay["compiler"],
                    symbols=tuple(overlay["symbols"]),
                    interposed=tuple(overlay["interposed"]),
                )
                for project, overlay in data["overlays"].items()
            },
            wheels={
                project: RecordedWheel(
                    file=wheel["file"],
                    version=wheel["version"],
                    sha256=wheel["sha256"],
                    base_sha256=wheel["base"]["sha256"],
                    changed=tuple(wheel["changed"]),
                    added=tuple(wheel["added"]),
                )
                for project, wheel in data["wheels"].items()
            },
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerifyError(
            f"{path.parent} is not a folder that castoff built",
            expected=f"a manifest.json of format {FORMAT} in it",
            found=f"{type(error).__name__}: {error}",
            next_step="Give the folder that `castoff build` named, such as dist/2.9-cpu.",
        ) from error
