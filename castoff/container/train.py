"""The training image: the wheels of an output folder, and what they require."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from castoff.container.engine import Engine, Image, build_image
from castoff.container.network import Network, without_folders
from castoff.core.errors import ContainerError

CONTEXT = (
    "apt-install.sh",
    "entrypoint.sh",
    "install.py",
    "sbom.py",
    "tools.lock",
    "tools.packages",
    "train.Dockerfile",
    "train.lock",
    "train.packages",
)
"""The files of docker/ that the image is made from, besides the output folder."""


def make_image(
    root: Path,
    dist: Path,
    engine: Engine,
    network: Network,
    *,
    tag: str | None = None,
    base: str | None = None,
    cuda: str = "install",
) -> str:
    """Build the training image of an output folder and return its name.

    Args:
        dist: The output folder, such as dist/2.9-tpu.
        network: This machine's package index and certificates.
        tag: The image's name; castoff-train:<pin>-<target> if not given.
        base: The image to start from; the Dockerfile's own if not given.
        cuda: "install" or "leave-out": the packages for GPUs that a CUDA build of torch asks for.

    Raises:
        ContainerError: There are no wheels, or the engine failed.
    """
    manifest = read_manifest(dist)
    # Beside the wheels: hard links, which need no disk space, work only within a file system.
    with tempfile.TemporaryDirectory(prefix=".image-", dir=dist.parent) as work:
        context = assemble(root, dist, Path(work))
        image = Image(
            tag=tag or f"localhost/castoff-train:{manifest['pin']['name']}-{manifest['target']}",
            context=context,
            dockerfile="train.Dockerfile",
            stage="train",
            secrets=without_folders(network).for_build(Path(work)),
            arguments={
                "DEVICE": manifest["target"].upper(),
                "CUDA_PACKAGES": cuda,
                **({"BASE": base} if base else {}),
            },
            labels=labels(manifest),
        )
        build_image(engine, image)
    return image.tag


def read_manifest(dist: Path) -> dict[str, Any]:
    """Return the manifest of an output folder.

    Raises:
        ContainerError: There is none.
    """
    try:
        manifest: dict[str, Any] = json.loads((dist / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContainerError(
            f"{dist} is not a folder that castoff built",
            expected="a manifest.json in it",
            found=str(error),
            next_step="Build the wheels first: ./build.sh --target cpu, or --target tpu for a TPU host.",
        ) from error
    return manifest


def assemble(root: Path, dist: Path, work: Path) -> Path:
    """Make the context of the image: the files of docker/, and the output folder by hard links."""
    context = work / "context"
    (context / "dist").mkdir(parents=True)
    for name in CONTEXT:
        shutil.copy(root / "docker" / name, context / name)
    for path in dist.iterdir():
        try:
            os.link(path, context / "dist" / path.name)
        except OSError:
            shutil.copy2(path, context / "dist" / path.name)
    return context


def labels(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the labels of an image, which describe its wheels."""
    pin, wheels = manifest["pin"], manifest["wheels"]
    versions = ", ".join(f"{project} {wheel['version']}" for project, wheel in wheels.items())
    found = {
        "org.opencontainers.image.title": "castoff",
        "org.opencontainers.image.description": f"{versions}, for {manifest['target'].upper()}",
        "org.opencontainers.image.version": wheels["torch_xla"]["version"],
        "org.opencontainers.image.revision": manifest["revision"] or "unknown",
        "org.opencontainers.image.licenses": "BSD-3-Clause",
        "castoff.pin": pin["name"],
        "castoff.pin.torch": pin["torch"],
        "castoff.pin.torch_xla": pin["torch_xla"],
        "castoff.target": manifest["target"],
        "castoff.python": manifest["python"],
        "castoff.topics": " ".join(topic["name"] for topic in manifest["topics"]),
        "castoff.key": manifest["key"],
    }
    found.update({f"castoff.sha256.{project}": wheel["sha256"] for project, wheel in wheels.items()})
    if "libtpu" in manifest:
        found["castoff.pin.libtpu"] = manifest["libtpu"]["version"]
    return found
