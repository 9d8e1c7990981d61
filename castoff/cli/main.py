"""The command line: every command group in one program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import typer
from typer.core import TyperGroup

from castoff.cli import build, cache, environments, inplace, release, topics, tpu, upstream
from castoff.cli.boundary import boundary
from castoff.core.console import Console
from castoff.core.errors import MachineError
from castoff.core.places import IN_PACKAGE

app = typer.Typer(
    name="castoff",
    help="`castoff build --target cpu`\n\n"
    "Patched PyTorch and PyTorch/XLA wheels in which dtypes mean what they say. After the command above the wheels are "
    "in dist/2.9-cpu/.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _of_the_tree(name: str) -> Callable[..., None]:
    """Return what a command does in castoff's package if it needs the tree."""

    def refuse() -> None:
        with boundary(Console()):
            raise MachineError(
                f"castoff {name} needs castoff's tree",
                expected="a checkout of it, whose ./build.sh makes .venv/bin/castoff",
                found="castoff's package",
                next_step=f"Run it there: .venv/bin/castoff {name} …",
            )

    return refuse


if IN_PACKAGE:
    # The rest of the command line is not read: every option is that of another castoff.
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    for group in (build.app, release.app, upstream.app, topics.app):
        for command in group.registered_commands:
            if command.name in {"topics", "status"}:
                continue
            command.callback = _of_the_tree(str(command.name))
            command.context_settings = anything
            command.hidden = True
for group in (inplace.app, build.app, release.app, topics.app, environments.app, upstream.app):
    app.add_typer(group)
app.add_typer(tpu.app, name="tpu", short_help="The TPU compiler, on a machine without a TPU.")
app.add_typer(cache.app, name="cache", short_help="What castoff keeps between builds.")
app.add_typer(upstream.pin_app, name="pin", short_help="The pins: pairs of upstream releases to start from.")

CALLED_AS = "CASTOFF_CALLED_AS"
"""The environment variable by which ./build.sh says its name: it is `castoff build`."""


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _terminate)
    program = typer.main.get_command(app)
    script = os.environ.get(CALLED_AS)
    if script is not None and sys.argv[1:2] == ["build"] and isinstance(program, TyperGroup):
        program.commands["build"].main(sys.argv[2:], prog_name=script)
    program(prog_name="castoff")


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Make SIGTERM clean up as Ctrl-C does."""
    raise KeyboardInterrupt
