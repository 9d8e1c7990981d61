"""The builder: ./build.sh --docker, which runs `castoff build` in an image with everything that it needs."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from castoff.container.engine import Engine, Image, Job, build_image, carry_out
from castoff.container.network import Network, without_folders
from castoff.core.places import cache_root, xdg_cache

CONTEXT = ("apt-install.sh", "builder.Dockerfile", "builder.packages")
"""The files of docker/ that the image is made from, besides the lock file of the build's tools."""


def build_in_container(
    root: Path, arguments: Sequence[str], engine: Engine, network: Network, base: str | None = None
) -> int:
    """Make the builder if it does not exist, run `castoff build` in it, and return its exit status.

    Args:
        network: This machine's package index and certificates.
        base: The image to start from; the Dockerfile's own if not given.

    Raises:
        ContainerError: The image could not be built.
    """
    with tempfile.TemporaryDirectory(prefix="castoff-") as work:
        image = builder_image(root, Path(work), network, base)
        if carry_out(engine.exists(image.tag), quiet=True) != 0:
            build_image(engine, image)
    job = builder_job(root, image.tag, arguments, network, os.environ)
    for folder, mode in job.volumes.items():
        if mode == "rw":
            folder.mkdir(parents=True, exist_ok=True)
    return run(engine, job)


def run(engine: Engine, job: Job) -> int:
    """Run a job in a new container, remove that, and return the job's exit status."""
    *commands, removal = engine.run(job, f"castoff-{os.getpid()}")
    try:
        for command in commands:
            status = carry_out(command, job.variables if engine.name != "buildah" else None)
            if status != 0:
                break
    finally:
        carry_out(removal, quiet=True)
    return status


def builder_image(root: Path, work: Path, network: Network, base: str | None) -> Image:
    """Make the context of the builder and return the image to build from it.

    Its name has the hash of all its inputs, so there is one for each state of the lists.
    """
    context = work / "context"
    context.mkdir()
    for path in [*(root / "docker" / name for name in CONTEXT), root / "ci" / "requirements.lock"]:
        shutil.copy(path, context / path.name)
    digest = hashlib.sha256(repr(base).encode())
    for path in sorted(context.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return Image(
        tag=f"localhost/castoff-builder:{digest.hexdigest()[:12]}",
        context=context,
        dockerfile="builder.Dockerfile",
        secrets=without_folders(network).for_build(work),
        arguments={"BASE": base} if base else {},
    )


def builder_job(
    root: Path, tag: str, arguments: Sequence[str], network: Network, environment: Mapping[str, str]
) -> Job:
    """Return the run of `castoff build` in the builder: as the calling user, on this machine's tree and caches.

    Args:
        network: This machine's package index and certificates.
    """
    variables, volumes = network.for_run()
    arguments, places = absolute_out(arguments)
    caches = cache_volumes(environment)
    variables.update(
        {
            "PYTHONPATH": str(root),
            "CASTOFF_CACHE": str(cache_root()),
            "CASTOFF_CALLED_AS": "./build.sh --docker",
            "UV_CACHE_DIR": str(_uv_cache(environment)),
        }
    )
    variables.update({"HOME": "/tmp", "XDG_CACHE_HOME": str(xdg_cache())})  # noqa: S108  # the container's own
    for folder in [root, *places, *caches]:
        volumes[folder] = "rw"
    for folder in _git_folders(root):
        volumes.setdefault(folder, "ro")
    return Job(
        tag=tag,
        command=["/opt/castoff/bin/python", "-m", "castoff", "build", *arguments],
        folder=root,
        volumes=_without_nested(volumes),
        variables=variables,
        user=(os.getuid(), os.getgid()),
    )


def cache_volumes(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that hold castoff's cache and uv's.

    One folder if they are in the same folder: hard links, which save 5 GB for each installation of the wheels,
    do not work across mounts.
    """
    caches = [cache_root(), _uv_cache(environment)]
    return [xdg_cache()] if all(cache.parent == xdg_cache() for cache in caches) else caches


def _uv_cache(environment: Mapping[str, str]) -> Path:
    own = environment.get("UV_CACHE_DIR")
    return Path(own).absolute() if own else xdg_cache() / "uv"


def absolute_out(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the arguments of `castoff build` with the folder of --out absolute, and that folder if there is one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out")
    options, rest = parser.parse_known_args(list(arguments))
    if options.out is None:
        return rest, []
    out = Path(options.out).absolute()
    return [*rest, "--out", str(out)], [out]


def _git_folders(root: Path) -> list[Path]:
    """Return git's folders of the tree: manifest.json has its revision."""
    command = ["git", "-C", str(root), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [Path(done.stdout.strip())] if done.returncode == 0 else []


def _without_nested(volumes: Mapping[Path, str]) -> dict[Path, str]:
    """Leave out volumes inside a folder that is mounted writable."""
    shown = [folder for folder, mode in volumes.items() if mode == "rw"]
    return {
        folder: mode
        for folder, mode in volumes.items()
        if not any(other != folder and other in folder.parents for other in shown)
    }
