"""Container engines: the same commands for docker, podman and buildah."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from castoff.core.errors import ContainerError

ENGINES = ("docker", "podman", "buildah")
"""The supported engines, in the order in which they are tried."""


@dataclass(frozen=True)
class Engine:
    """A container engine."""

    name: str  # one of ENGINES
    path: str  # its program
    rootless: bool  # whether root in a container is the calling user outside

    def build(self, image: Image) -> list[str]:
        """Return the command that builds an image."""
        command = [self.path, "build", "--network", "host", "--file", str(image.context / image.dockerfile)]
        if self.name != "docker":
            # Docker's format has HEALTHCHECK. No layers: their cache of steps does not see that a wheel, which a
            # step gets as a mount, has changed.
            command += ["--format", "docker", "--layers=false"]
        if image.stage:
            command += ["--target", image.stage]
        for name, path in image.secrets.items():
            command += ["--secret", f"id={name},src={path}"]
        for name, value in image.arguments.items():
            command += ["--build-arg", f"{name}={value}"]
        for name, value in image.labels.items():
            command += ["--label", f"{name}={value}"]
        return [*command, "--tag", image.tag, str(image.context)]

    def exists(self, tag: str) -> list[str]:
        """Return the command that succeeds if there is an image of that name."""
        if self.name == "buildah":
            return [self.path, "inspect", "--type", "image", tag]
        return [self.path, "image", "inspect", tag]

    def run(self, job: Job, container: str) -> list[list[str]]:
        """Return the commands that run a program in a new container; the last one removes it."""
        # Where root inside is the calling user, run as root; podman can keep the ids as they are.
        user, group = (0, 0) if self.rootless and self.name != "podman" else job.user
        options = ["--user", f"{user}:{group}"]
        options += ["--workingdir" if self.name == "buildah" else "--workdir", str(job.folder)]
        for outside, mode in job.volumes.items():
            options += ["--volume", f"{outside}:{outside}:{mode}"]
        if self.name == "buildah":
            for name, value in job.variables.items():
                options += ["--env", f"{name}={value}"]
            return [
                [self.path, "from", "--name", container, job.tag],
                [self.path, "run", "--network", "host", *options, container, "--", *job.command],
                [self.path, "rm", container],
            ]
        # By name only: the values, which may have a password, come from the environment of the engine.
        for name in job.variables:
            options += ["--env", name]
        if self.name == "podman":
            # The calling user is the same user inside, and SELinux allows the container to use the mounted folders.
            options += ["--security-opt", "label=disable", *(["--userns", "keep-id"] if self.rootless else [])]
        run = [self.path, "run", "--name", container, "--network", "host", *options]
        return [
            [*run, "--entrypoint", job.command[0], job.tag, *job.command[1:]],
            [self.path, "rm", "--force", container],
        ]


@dataclass(frozen=True)
class Image:
    """An image that is to be built."""

    tag: str  # its name
    context: Path  # the folder that the build sees
    dockerfile: str  # the Dockerfile in it
    stage: str = ""  # the stage to stop at; the last one if empty
    secrets: Mapping[str, Path] = field(default_factory=dict)  # files that exist during the build only, by name
    arguments: Mapping[str, str] = field(default_factory=dict)  # build arguments
    labels: Mapping[str, str] = field(default_factory=dict)  # labels


@dataclass(frozen=True)
class Job:
    """A program that is to run in a container."""

    tag: str  # the image
    command: Sequence[str]  # the program and its arguments
    folder: Path  # the folder to run it in
    volumes: Mapping[Path, str]  # folders and files that it sees at the same place as outside, each with "rw" or "ro"
    variables: Mapping[str, str]  # its environment, besides the image's
    user: tuple[int, int]  # the ids of user and group that it runs as


def find_engine(wanted: str | None = None) -> Engine:
    """Find an engine that works.

    Args:
        wanted: Its name; if not given, the first of ENGINES that answers.

    Raises:
        ContainerError: There is none, or it does not answer.
    """
    found: list[str] = []
    for name in [wanted] if wanted else ENGINES:
        path = shutil.which(name) if name in ENGINES else None
        if path is None:
            found.append(f"{name}: not on PATH" if name in ENGINES else f"{name}: unknown to castoff")
            continue
        answer = _ask(name, path)
        if answer.returncode == 0:
            return Engine(name, path, _is_rootless(name, answer.stdout))
        found.append(f"{name}: {(answer.stderr.strip().splitlines() or ['no answer'])[-1]}")
    raise ContainerError(
        "no container engine works",
        expected=" or ".join([wanted] if wanted else ENGINES) + ", which answers",
        found="\n           ".join(found),
        next_step="Install one (Debian and Ubuntu: apt-get install podman), start docker's daemon, or build without.",
    )


def _ask(name: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [path, "info", *(["--format", "{{.SecurityOptions}}"] if name == "docker" else [])]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def _is_rootless(name: str, answer: str) -> bool:
    """Docker's daemon may be another user's; the other engines run as the calling user."""
    return "rootless" in answer if name == "docker" else os.geteuid() != 0


def carry_out(command: Sequence[str], variables: Mapping[str, str] | None = None, *, quiet: bool = False) -> int:
    """Run a command of an engine, its output to standard error, and return its exit status.

    Args:
        variables: What is added to the environment.
    """
    environment: dict[str, str] = {**os.environ, **(variables or {})}
    out = subprocess.DEVNULL if quiet else None
    return subprocess.run(
        command, env=environment, check=False, stdin=subprocess.DEVNULL, stdout=out, stderr=out
    ).returncode


def build_image(engine: Engine, image: Image) -> None:
    """Build an image.

    Raises:
        ContainerError: The engine failed.
    """
    status = carry_out(
        engine.build(image), {"DOCKER_BUILDKIT": "1"}
    )  # the default builder of older dockers has no secrets
    if status != 0:
        raise ContainerError(
            f"{image.tag} could not be built",
            expected=f"{engine.name} builds {image.dockerfile}",
            found=f"exit status {status}; its messages are above",
            next_step="Correct the problem, and run the same command again.",
        )
