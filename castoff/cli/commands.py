"""Commands, each with an example at the top of its help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

Function = Callable[..., None]


def command(app: typer.Typer, name: str, example: str, *, more: str = "") -> Callable[[Function], Function]:
    """Make a command of a function: its --help is the example, then the function's docstring.

    Args:
        example: A command line, as a user types it.
    """

    def register(function: Function) -> Function:
        about = inspect.getdoc(function) or ""
        options: dict[str, Any] = {"help": f"`{example}`\n\n{about}{more}", "short_help": about.partition("\n")[0]}
        return app.command(name, **options)(function)

    return register
