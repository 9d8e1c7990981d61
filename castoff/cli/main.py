"""The command line: every command group in one program."""

from __future__ import annotations

import signal
from types import FrameType

import typer

from castoff.cli import build, environments, topics, tpu, upstream

app = typer.Typer(
    name="castoff",
    help="Patched PyTorch and PyTorch/XLA wheels in which dtypes mean what they say.\n\n"
    "Start with `castoff build --target cpu`: the wheels are then in dist/2.9-cpu/.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (build.app, topics.app, environments.app, upstream.app):
    app.add_typer(group)
app.add_typer(tpu.app, name="tpu")


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _terminate)
    app(prog_name="castoff")


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Make SIGTERM clean up as Ctrl-C does."""
    raise KeyboardInterrupt
