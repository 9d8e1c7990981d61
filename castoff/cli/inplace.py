"""install and uninstall: castoff in an environment that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from castoff.cli.boundary import boundary
from castoff.cli.options import JsonOption, VerboseOption
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.errors import MachineError
from castoff.core.interpreter import active_python
from castoff.core.places import ROOT
from castoff.inplace import commands
from castoff.inplace.delta import FOLDER, read_deltas
from castoff.inplace.target import find_target

app = typer.Typer()

EnvironmentOption = Annotated[
    Path | None,
    typer.Option(
        "--python", metavar="PATH", help="The Python of the environment.", show_default="that of the active one"
    ),
]


@app.command("install")
def install_command(
    python: EnvironmentOption = None, verbose: VerboseOption = False, json_lines: JsonOption = False
) -> None:
    """Make of the stock torch and torch_xla of an environment the patched ones, in seconds, without a download.

    What changes is replaced and kept, so that `castoff uninstall` restores it. If castoff is stopped, the same command
    repairs the environment.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console, command_context(console) as context:
        deltas = read_deltas(ROOT / FOLDER)
        target = find_target(_python(python), context.runner)
        result = commands.install(target, deltas, ROOT / FOLDER, console, context.runner)
        console.result(result.text, result.data)


@app.command("uninstall")
def uninstall_command(
    python: EnvironmentOption = None, verbose: VerboseOption = False, json_lines: JsonOption = False
) -> None:
    """Put back the stock torch and torch_xla that `castoff install` has patched, byte by byte."""
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console, command_context(console) as context:
        result = commands.uninstall(find_target(_python(python), context.runner), console)
        console.result(result.text, result.data)


def _python(named: Path | None) -> Path:
    found = named or active_python()
    if found is None:
        raise MachineError(
            "which environment?",
            expected="--python, an active environment, or a python3 on PATH",
            found="none of them",
            next_step="Name its Python: --python ENVIRONMENT/bin/python",
        )
    return Path(found).absolute()
