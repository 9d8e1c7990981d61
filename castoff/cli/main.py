"""The command line: every command group in one program."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

import typer

from castoff.cli import build, environments, inplace, release, topics, tpu, upstream
from castoff.cli.boundary import boundary
from castoff.core.console import Console
from castoff.core.errors import MachineError
from castoff.core.places import IN_PACKAGE

app = typer.Typer(
    name="castoff",
    help="Patched PyTorch and PyTorch/XLA wheels in which dtypes mean what they say.\n\n"
    "Start with `castoff build --target cpu`: the wheels are then in dist/2.9-cpu/.",
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
app.add_typer(tpu.app, name="tpu")


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _terminate)
    app(prog_name="castoff")


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Make SIGTERM clean up as Ctrl-C does."""
    raise KeyboardInterrupt
