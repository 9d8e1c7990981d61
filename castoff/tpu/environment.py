"""Environments that castoff makes for itself, in the cache under a hash of their contents."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from castoff.build.fetch import fetch_wheel
from castoff.core.cache import Cache
from castoff.core.context import Context
from castoff.core.errors import CommandError, FetchError, MachineError
from castoff.core.interpreter import Interpreter, find_interpreter
from castoff.core.pipconfig import current_uv_environment
from castoff.core.tools import tool
from castoff.model.pin import PROJECTS, Pin

Install = Callable[..., None]
"""Called with a log's name and the arguments of `uv pip install`."""


def compiler_environment(pin: Pin, context: Context) -> Path:
    """Return the Python of the environment with the TPU compiler; make it first if it does not exist.

    Args:
        pin: The pin whose libtpu it is.
        context: The cache, the runner and the console.

    Raises:
        PinError: The pin has no TPU part.
        MachineError: This machine has no CPython that jaxlib and libtpu are both published for.
        FetchError: They cannot be downloaded.
    """
    tpu = pin.for_tpu()
    interpreter = _first_of(tpu.compiler_pythons, context)
    lock = tpu.compiler.read_text(encoding="utf-8")

    def fill(install: Install) -> None:
        install("compiler", "--require-hashes", "--requirement", tpu.compiler)

    about = f"libtpu {tpu.libtpu} and jaxlib {tpu.jaxlib}"
    return _environment("tpu-compiler", [lock], interpreter, about, fill=fill, context=context)


def stock_environment(pin: Pin, interpreter: Interpreter, indexes: Sequence[str], context: Context) -> Path:
    """Return the Python of an environment with upstream's own wheels; make it first if it does not exist.

    Args:
        pin: The pin whose releases they are.
        interpreter: Its CPython.
        indexes: Package indexes to look at besides pip's own.
        context: The cache, the runner and the console.

    Raises:
        PinError: The pin has no wheels for that CPython.
        FetchError: They, or their requirements, cannot be downloaded.
    """
    bases = [fetch_wheel(pin, project, interpreter.version, indexes=indexes, context=context) for project in PROJECTS]

    def fill(install: Install) -> None:
        extra = [argument for index in indexes for argument in ("--extra-index-url", index)]
        install("stock", *extra, "numpy", *(base.path for base in bases))

    parts = [base.pinned.sha256 for base in bases]
    return _environment("stock", parts, interpreter, "upstream's own wheels", fill=fill, context=context)


def results(cache: Cache) -> Path:
    """Return the folder of the TPU compiler's results."""
    return cache.root / "tpu"


def _first_of(versions: Sequence[str], context: Context) -> Interpreter:
    for version in versions:
        interpreter = find_interpreter(version, context.runner)
        if interpreter.path is not None:
            return interpreter
    raise MachineError(
        "this machine has no Python for the TPU compiler",
        expected=f"CPython {' or '.join(versions)}, which jaxlib and libtpu are published for",
        found="none of them",
        next_step=f"Install python{versions[-1]}, so that it is on PATH.",
    )


def _environment(
    kind: str,
    parts: Sequence[str],
    interpreter: Interpreter,
    about: str,
    *,
    fill: Callable[[Install], None],
    context: Context,
) -> Path:
    """Make an environment at its final path: scripts and pyvenv.cfg contain it."""
    assert interpreter.path is not None
    base = interpreter.path.resolve()
    key = hashlib.sha256("\n".join([kind, interpreter.version, str(base), *parts]).encode()).hexdigest()
    folder = context.cache.root / "environments" / f"{kind}-{key[:16]}"
    python, finished = folder / "bin" / "python", folder / "castoff-finished"
    with context.cache.lock(folder.name):
        if finished.is_file() and python.exists():
            return python
        context.console.note(f"making an environment with {about} (once)")
        shutil.rmtree(folder, ignore_errors=True)
        environment, uv = current_uv_environment(context.runner), tool("uv")

        def install(name: str, *arguments: str | Path) -> None:
            context.runner.run([uv, "pip", "install", "--python", python, *arguments], name=name, env=environment)

        try:
            context.runner.run(
                [uv, "venv", "--no-project", "--python", base, folder], name=f"{kind}-venv", env=environment
            )
            fill(install)
        except CommandError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise FetchError(
                f"an environment with {about} could not be made",
                expected="uv installs it",
                found=error.found,
                next_step=f"Check the network and pip's index (`pip config list`). {error.next_step}",
            ) from error
        finished.touch()
    return python
