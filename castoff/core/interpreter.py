"""The CPython that the wheels are for, and an interpreter of that version on this machine."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.core.errors import MachineError
from castoff.core.runner import Runner
from castoff.core.tools import tool

_QUESTION = (
    "import json, platform, sys; "
    "print(json.dumps([platform.python_implementation(), '%d.%d' % sys.version_info[:2], platform.machine()]))"
)


@dataclass(frozen=True)
class Interpreter:
    """The CPython that a build is for."""

    version: str  # its version, such as "3.11"
    path: Path | None  # an interpreter of that version on this machine, or None


def check_machine() -> None:
    """Check that this machine can run what the build makes.

    Raises:
        MachineError: It is not x86-64 Linux.
    """
    found = f"{platform.system()} {platform.machine()}"
    if found != "Linux x86_64":
        raise MachineError(
            "this machine cannot build the wheels",
            expected="Linux x86_64, which upstream's wheels are for",
            found=found,
            next_step="Build on such a machine, or in a container of that platform.",
        )


def find_interpreter(request: str | None, runner: Runner, supported: Sequence[str] = ()) -> Interpreter:
    """Find the CPython that the user asked for.

    Args:
        request: A version such as "3.12", the path of an interpreter, or None for the running one.
        supported: Versions, oldest first. If the running one is none of them, None means the newest
            of them that is on this machine.

    Returns:
        The interpreter. One that was given by version may have no path: wheels can be built for it,
        but not installed.

    Raises:
        MachineError: The path is not that of a CPython for this machine, or no supported one is on it.
    """
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if request == running or (request is None and (running in supported or not supported)):
        return Interpreter(running, Path(sys.executable))
    if request is None:
        return _newest(supported, running, runner)
    if re.fullmatch(r"3\.\d+", request):
        return Interpreter(request, _locate(request, runner))
    path = Path(request).absolute()
    answer = _ask(path, runner) if path.is_file() else None
    if answer is None or answer[0] != "CPython" or answer[2] != "x86_64":
        raise MachineError(
            f"--python {request} is not a CPython for this machine",
            expected="a version like 3.11, or the path of an x86-64 CPython",
            found=" ".join(answer) if answer else "no interpreter that runs",
            next_step="Give --python a version or the path of an interpreter; leave it out for the running one.",
        )
    return Interpreter(answer[1], path)


def active_python() -> str | None:
    """Return the Python of the active environment: of VIRTUAL_ENV, or else the first on PATH, or None."""
    environment = os.environ.get("VIRTUAL_ENV")
    return str(Path(environment) / "bin" / "python") if environment else shutil.which("python3")


def _newest(supported: Sequence[str], running: str, runner: Runner) -> Interpreter:
    for version in reversed(supported):
        path = _locate(version, runner)
        if path is not None:
            return Interpreter(version, path)
    versions = " or ".join(reversed(supported))
    raise MachineError(
        "this pin does not support the running CPython",
        expected=f"CPython {versions}, on PATH, in pyenv or in uv",
        found=f"CPython {running}",
        next_step=f"Install one (uv python install {supported[-1]}, or pyenv install {supported[-1]}), or give its "
        f"path with --python. --python {supported[-1]} builds the wheels without installing them.",
    )


def _locate(version: str, runner: Runner) -> Path | None:
    """Find an interpreter of a version: on PATH, else among those of pyenv, else of uv."""
    for path in _candidates(version, runner):
        # A version manager's shim can exist without the Python behind it: run it.
        if _ask(path, runner) == ("CPython", version, "x86_64"):
            return path
    return None


def _candidates(version: str, runner: Runner) -> Iterator[Path]:
    name = shutil.which(f"python{version}")
    if name is not None:
        yield Path(name)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    find: list[str | Path] = [tool("uv"), "python", "find", "--no-project", "--no-python-downloads", version]
    found = runner.run(find, name="uv-python", check=False)
    if found.returncode == 0:
        yield Path(found.output.splitlines()[-1])


def _ask(path: Path, runner: Runner) -> tuple[str, str, str] | None:
    try:
        completed = runner.run([path, "-I", "-c", _QUESTION], name="python", check=False)
        implementation, version, machine = json.loads(completed.output)
    except (MachineError, OSError, ValueError):
        return None
    return str(implementation), str(version), str(machine)
