"""install and uninstall: castoff in an environment that exists."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import JsonOption, VerboseOption
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.places import ROOT
from castoff.inplace import commands
from castoff.inplace.choice import left_out
from castoff.inplace.delta import FOLDER, read_deltas
from castoff.inplace.target import find_target

app = typer.Typer()

EnvironmentOption = Annotated[
    Path | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="The Python of the environment.",
        show_default="the active one's, or that of the one that castoff is in",
    ),
]


@command(app, "install", "castoff install --python ENVIRONMENT/bin/python")
def install_command(
    python: EnvironmentOption = None,
    topics: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these topics and what they require, such as grad-dtype,data-setter."),
    ] = None,
    without: Annotated[str | None, typer.Option(metavar="LIST", help="All topics but these.")] = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Make of the stock torch and torch_xla of an environment the patched ones, in seconds, without a download.

    What changes is replaced and kept, so that `castoff uninstall` restores it. If castoff is stopped, the same command
    repairs the environment.

    Topics that are left out are installed, but off by default: CASTOFF_DISABLE in the environment of a program replaces
    that choice. Without these options an environment keeps the choice that it has.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console, command_context(console) as context:
        deltas = read_deltas(ROOT / FOLDER)
        target = find_target(_python(python), context.runner)
        only, off = _names(topics), _names(without)
        chosen = topics is not None or without is not None
        result = commands.install(
            target,
            deltas,
            ROOT / FOLDER,
            console,
            left_out=(lambda pin: left_out(ROOT, pin, only, off)) if chosen else None,
        )
        console.result(result.text, result.data)


@command(app, "uninstall", "castoff uninstall --python ENVIRONMENT/bin/python")
def uninstall_command(
    python: EnvironmentOption = None, verbose: VerboseOption = False, json_lines: JsonOption = False
) -> None:
    """Put back the stock torch and torch_xla that `castoff install` has patched, byte by byte."""
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console, command_context(console) as context:
        result = commands.uninstall(find_target(_python(python), context.runner), console)
        console.result(result.text, result.data)


def _names(listed: str | None) -> frozenset[str]:
    return frozenset(name.strip() for name in (listed or "").split(",")) - {""}


def _python(named: Path | None) -> Path:
    """Return the Python of the environment that is meant; never one that is merely first on PATH."""
    active = os.environ.get("VIRTUAL_ENV")
    return (named or (Path(active) / "bin" / "python" if active else Path(sys.executable))).absolute()
