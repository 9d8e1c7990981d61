"""The manifest of a build: its inputs and its wheels, as a file beside the wheels."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from castoff.builder.compile import Overlay
from castoff.builder.fetch import BaseWheel, file_sha256
from castoff.builder.install import requirements
from castoff.builder.repack import PatchedWheel
from castoff.builder.verify import Verified
from castoff.core.errors import VerifyError
from castoff.model.pin import Pin
from castoff.model.topics import Topic

FORMAT = 2
"""The version of the manifest's format; it changes when a reader of the old format would be misled."""


LAYERS = ("core", "formats", "model", "builder")
"""The folders of castoff that decide what is in a wheel."""


@dataclass(frozen=True)
class Build:
    """A finished build, for its manifest."""

    pin: Pin
    target: str
    python: str  # the CPython version
    version: str  # the version of castoff, such as "castoff.1"
    revision: str | None  # the git revision of castoff's tree, or None
    topics: Sequence[Topic]  # the topics in it, in order
    overlays: Sequence[Overlay]  # the compiled overlays
    wheels: Sequence[PatchedWheel]
    libtpu: BaseWheel | None  # the wheel of libtpu beside them, if the target is a TPU
    verified: Verified  # what was checked

    @property
    def key(self) -> str:
        """One hash over all inputs of the wheels: equal keys mean equal bytes, for any target."""
        return wheels_key(self.pin, self.version, self.topics, self.overlays, [wheel.base for wheel in self.wheels])


def wheels_key(
    pin: Pin,
    version: str,
    topics: Sequence[Topic],
    overlays: Sequence[Overlay],
    bases: Sequence[BaseWheel],
) -> str:
    """Return one hash over all inputs of the wheels.

    Args:
        topics: The topics in them, in order.
    """
    parts = [pin.name, version, *(base.pinned.sha256 for base in bases), *(overlay.key for overlay in overlays)]
    parts += [f"{topic.key} {topic.content_hash(pin.name)}" for topic in topics]
    parts += [f"{project} requires {line}" for project in pin.projects for line in pin.upstream(project).requires]
    parts += [file_sha256(path) for path in _sources()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _sources() -> list[Path]:
    """Return the modules that decide what is in a wheel: those of this layer and of the layers below."""
    package = Path(__file__).parents[1]
    return [path for layer in LAYERS for path in sorted((package / layer).glob("*.py"))]


def tree_revision(root: Path) -> str | None:
    """Return the git revision of castoff's own tree, or None outside of git.

    Args:
        root: The tree. Changes that are not committed, new files included, show as "-dirty".
    """
    answers = []
    for question in (("rev-parse", "HEAD"), ("status", "--porcelain")):
        try:
            completed = subprocess.run(["git", "-C", str(root), *question], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        if completed.returncode != 0:
            return None
        answers.append(completed.stdout.strip())
    commit, changes = answers
    return f"{commit}-dirty" if changes else commit


def manifest(build: Build) -> dict[str, object]:
    """Return the manifest of a build, as plain data."""
    return {
        "format": FORMAT,
        "castoff": build.version,
        "revision": build.revision,
        "key": build.key,
        "target": build.target,
        "python": build.python,
        "pin": {
            "name": build.pin.name,
            **{project: build.pin.upstream(project).commit for project in build.pin.projects},
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
        "cuda_packages": cuda_packages(build.wheels),
        **({"libtpu": _libtpu(build)} if build.libtpu is not None else {}),
        "verified": {
            "structure": True,
            "symbol_versions": True,
            "installed": build.verified.installed,
            "skipped": build.verified.skipped,
            "interpositions": build.verified.interpositions,
        },
    }


def _libtpu(build: Build) -> dict[str, str]:
    assert build.libtpu is not None
    return {
        "file": build.libtpu.path.name,
        "version": build.pin.for_tpu().libtpu,
        "sha256": build.libtpu.pinned.sha256,
    }


def cuda_packages(wheels: Sequence[PatchedWheel]) -> list[str]:
    """Return the packages for GPUs that are installed with the wheels: none with a CPU build."""
    names = {Requirement(line).name for wheel in wheels for line in requirements(wheel.path)}
    return sorted(name for name in names if name.startswith(("nvidia-", "triton")))


def constraints(build: Build) -> str:
    """Return the constraints file: with it, no stock wheel and no companion for another torch is installed."""
    lines = [f"{wheel.project}=={wheel.version}" for wheel in build.wheels]
    if build.libtpu is not None:
        lines.append(f"libtpu=={build.pin.for_tpu().libtpu}")
    lines += [f"{name}=={version}" for name, version in build.pin.companions.items()]
    return "".join(f"{line}\n" for line in lines)


def install_line(target: str, projects: Sequence[str]) -> str:
    """Return the command that installs an output folder, from within it.

    Args:
        projects: The projects whose wheels are in it.
    """
    packages = " ".join([*projects, "libtpu"] if target == "tpu" else projects)
    return f"pip install -c constraints.txt --find-links . {packages}"


def install_text(build: Build) -> str:
    """Return the text of INSTALL.txt, for users who copy the folder to a TPU host."""
    wheels = ", ".join(f"{wheel.project} {wheel.version}" for wheel in build.wheels)
    cuda = cuda_packages(build.wheels)
    lines = [
        f"{wheels} and libtpu {build.pin.for_tpu().libtpu}, for CPython {build.python} on a TPU host.",
        "",
        "In this folder, in the environment of the job, on each host:",
        "",
        f"    {install_line(build.target, build.pin.projects)}",
        "    PJRT_DEVICE=TPU python -m castoff_doctor",
        "",
        "The second command reports problems, if there are any.",
        "Keep `-c constraints.txt` in every later `pip install`: then no package replaces them with stock torch.",
    ]
    if cuda:
        lines += [
            "",
            f"This torch started from upstream's CUDA build, so it asks for {len(cuda)} packages for GPUs, about 3 GB,",
            "which a TPU host does not need. To avoid them, build from upstream's CPU build:",
            "",
            "    ./build.sh --target tpu --index https://download.pytorch.org/whl/cpu",
        ]
    return "\n".join(lines) + "\n"


def write_manifest(path: Path, data: dict[str, object]) -> None:
    """Write a manifest."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Recorded:
    """A manifest of an earlier build."""

    pin: str  # the pin's name
    python: str  # the CPython version
    key: str  # the hash over all inputs of the wheels
    overlays: dict[str, RecordedOverlay]  # by project
    wheels: dict[str, RecordedWheel]  # by project
    libtpu: tuple[str, str] | None  # the file and the hash of the wheel of libtpu, if there is one
    verified: Verified  # what was checked


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
    """Read a manifest.

    Args:
        path: The file ``manifest.json``.

    Raises:
        VerifyError: It is missing or not a manifest of this format.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}")
        return Recorded(
            pin=data["pin"]["name"],
            python=data["python"],
            key=data["key"],
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
            libtpu=(data["libtpu"]["file"], data["libtpu"]["sha256"]) if "libtpu" in data else None,
            verified=Verified(
                installed=data["verified"]["installed"],
                skipped=data["verified"]["skipped"],
                interpositions=data["verified"]["interpositions"],
            ),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerifyError(
            f"{path.parent} is not a folder that castoff built",
            expected=f"a manifest.json of format {FORMAT} in it",
            found=f"{type(error).__name__}: {error}",
            next_step="Give the folder that `castoff build` named, such as dist/2.9-cpu.",
        ) from error
