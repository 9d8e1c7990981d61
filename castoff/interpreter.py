"""Which CPython the wheels are for, and where one is to try them with."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from castoff.errors import MachineError
from castoff.run import Runner

_QUESTION = (
    "import json, platform, sys; "
    "print(json.dumps([platform.python_implementation(), '%d.%d' % sys.version_info[:2], platform.machine()]))"
)


@dataclass(frozen=True)
class Interpreter:
    """The CPython that a build is for.

    Attributes:
        version: Its version, such as "3.11".
        path: An interpreter of that version on this machine, or None.
    """

    version: str
    path: Path | None


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


def find_interpreter(request: str | None, runner: Runner) -> Interpreter:
    """Find the CPython that the user asked for.

    Args:
        request: A version such as "3.12", the path of an interpreter, or None for the running one.
        runner: Runs the interpreter to ask it what it is.

    Returns:
        The interpreter. One asked for by version may have no path: wheels can be built for it,
        but not tried.

    Raises:
        MachineError: The path is not that of a CPython for this machine.
    """
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if request is None or request == running:
        return Interpreter(running, Path(sys.executable))
    if re.fullmatch(r"3\.\d+", request):
        name = shutil.which(f"python{request}")
        # A version manager's shim may be there without the Python behind it: ask it.
        if name is not None and _ask(Path(name), runner) == ("CPython", request, "x86_64"):
            return Interpreter(request, Path(name))
        return Interpreter(request, None)
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


def _ask(path: Path, runner: Runner) -> tuple[str, str, str] | None:
    try:
        completed = runner.run([path, "-I", "-c", _QUESTION], name="python", check=False)
        implementation, version, machine = json.loads(completed.output)
    except (MachineError, OSError, ValueError):
        return None
    return str(implementation), str(version), str(machine)
