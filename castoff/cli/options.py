"""Options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Target(StrEnum):
    """What wheels can be built for."""

    CPU = "cpu"
    TPU = "tpu"
    PACKAGE = "package"


class Wheels(StrEnum):
    """The wheels that a program can be compared with."""

    STOCK = "stock"


class Project(StrEnum):
    """What can be checked out."""

    TORCH = "torch"
    TORCH_XLA = "torch_xla"


VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show each command that is run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object a line, for programs.")]
IndexOption = Annotated[
    list[str] | None,
    typer.Option(
        "--index",
        metavar="URL",
        help="A package index to use besides those in pip's configuration. May be given more than once. "
        "A wheel is accepted by its hash only, whatever index it comes from.",
    ),
]
InstallOption = Annotated[
    bool,
    typer.Option(
        "--verify-install/--no-verify-install",
        help="Install the wheels into a scratch environment, import them, and check that each interposition "
        "takes effect. That needs a Python of the right version, and torch's dependencies from a package index.",
    ),
]


ProgramPythonOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The Python of the environment to run it in.",
        show_default="the active one, or one with the wheels in dist",
    ),
]
CallsOption = Annotated[
    int,
    typer.Option(
        min=1, help="How often to call the function; the last call counts. The first may make optimizer state."
    ),
]
PinOption = Annotated[str, typer.Option(help="The pair of upstream releases; see pins/.")]
