"""checkout, refresh, stage and pin: work with upstream's trees and releases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import IndexOption, JsonOption, Project, VerboseOption
from castoff.core.console import Console
from castoff.model.pin import DEFAULT_PIN
from castoff.upstream.commands import make_checkout, refresh_topic, update_checkout
from castoff.upstream.new_pin import new_pin
from castoff.upstream.pull_request import stage

app = typer.Typer()
pin_app = typer.Typer(
    help="`castoff pin new 2.8`\n\nThe pins: pairs of upstream releases to start from.", no_args_is_help=True
)


@command(app, "checkout", "castoff checkout --pin 2.6 --project torch /tmp/torch")
def checkout_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where it goes: empty, or not there yet.")],
    pin: Annotated[str, typer.Option(help="The pair of upstream releases; see pins/.")] = DEFAULT_PIN,
    project: Annotated[Project, typer.Option(help="Which of the two.")] = Project.TORCH,
    update: Annotated[
        bool, typer.Option("--update", help="If it exists, bring it up to date with the topics.")
    ] = False,
    unproven: Annotated[
        bool, typer.Option("--unproven", help="Also with hunks on C++ that nobody has applied or compiled yet.")
    ] = False,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Put upstream's tree into a folder, as a git repository with a commit for each topic on top."""
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        make = update_checkout if update else make_checkout
        make(pin, project.value, folder, console, unproven=unproven)


@command(app, "refresh", "castoff refresh grad-dtype /tmp/torch")
def refresh_command(
    topic: Annotated[str, typer.Argument(help="The topic that the edits belong to, such as grad-dtype.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The edited checkout.")],
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Write an edited checkout back into a topic: new files to files/, the rest to hunks/."""
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        refresh_topic(topic, folder, console)


@command(app, "stage", "castoff stage data-setter --onto /tmp/torch")
def stage_command(
    topic: Annotated[str, typer.Argument(help="The topic to send upstream, such as grad-dtype.")],
    onto: Annotated[
        str,
        typer.Option(
            metavar="DIR|REF",
            help="Upstream's tree: the folder of a checkout (castoff's own commits in it are ignored), or a "
            "branch, tag or commit of upstream's repository, which is fetched into the output folder.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Where the patches and the pull request's text go.", show_default="staged/TOPIC")
    ] = Path("staged"),
    branch: Annotated[
        str | None, typer.Option(help="The name of the branch, made in the checkout.", show_default="the topic's name")
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Python of an environment with the topic, to run the staged tests.",
            show_default="one with the wheels of that release in dist/",
        ),
    ] = None,
    stock: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="The same with stock wheels: the staged tests must fail there.", show_default="none"
        ),
    ] = None,
    compile_cpp: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the staged C++ against that release's headers.")
    ] = True,
    push: Annotated[
        str | None, typer.Option(metavar="REMOTE", help="Push the branch to this remote. Without it nothing is pushed.")
    ] = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Turn a topic into what upstream would merge: a branch, patches, and the text of a pull request.

    The topic's files and hunks, and those of the topics that it requires, become a commit each in upstream's
    style, without castoff's name: formatted and linted with upstream's own settings, compiled, and with its
    tests in upstream's own form. If a check fails, nothing is staged. The text has the tests' real output.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        stage(
            topic,
            onto=onto,
            out=out / topic.rpartition("/")[2] if out == Path("staged") else out,
            branch=branch,
            python=python,
            stock=stock,
            compile_cpp=compile_cpp,
            push=push,
            console=console,
        )


@command(pin_app, "new", "castoff pin new 2.8")
def pin_new_command(
    name: Annotated[str, typer.Argument(metavar="MAJOR.MINOR", help="The releases, such as 2.8: the newest of each.")],
    index: IndexOption = None,
    verbose: VerboseOption = False,
    json_lines: JsonOption = False,
) -> None:
    """Add a pin: find the releases in the package index, try every topic on them, write the results.

    pins/MAJOR.MINOR.toml gets every hash, the commits that the wheels state, the platform, the C++ ABI and the runtime
    of the device; each topic.toml, whether the topic applies, with its hunks and symbols. What could not be found
    out is printed as a list. Existing files are not overwritten: do what needs manual work, remove the pin's line
    from topic.toml, and run the command again.
    """
    with boundary(Console(json_lines=json_lines, verbose=verbose)) as console:
        new_pin(name, indexes=tuple(index or ()), console=console)
