"""topics, lint and status: list and check the topics, and show their state on each pin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from castoff.builder.environments import program_python
from castoff.builder.kernels import kernels_in
from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import JsonOption, ProgramPythonOption
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.places import ROOT
from castoff.inplace.commands import describe
from castoff.inplace.target import find_target
from castoff.model.lint import lint_topics
from castoff.model.pin import DEFAULT_PIN, load_pin, pin_names
from castoff.model.status import read_status
from castoff.model.topics import Topic, load_topics, named

app = typer.Typer()


@command(app, "topics", "castoff topics grad-dtype")
def topics_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A topic, such as grad-dtype: show all about it.", show_default="all, one line a topic"
        ),
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Show which topics override which operators, in the order of their calls.")
    ] = False,
    python: ProgramPythonOption = None,
    json_lines: JsonOption = False,
) -> None:
    """List the topics: every reason to differ from upstream, and the pins it applies to."""
    with boundary(Console(json_lines=json_lines)) as console:
        if kernels:
            _show_kernels(name, python, console)
            return
        pins = pin_names(ROOT / "pins")
        topics = load_topics(ROOT / "patches")
        width = max(len(topic.key) for topic in topics)
        for topic in named(topics, [name] if name else []):
            data: dict[str, object] = {
                "name": topic.key,
                "title": topic.title,
                "why": topic.why.strip(),
                "kind": topic.kind,
                "pins": topic.pins,
                "requires": list(topic.requires),
                "upstream": list(topic.upstream),
                "drop_when": topic.drop_when,
            }
            line = f"{topic.key:<{width}}  {_where(topic, pins):<15}  {topic.title}"
            console.result(_details(topic, pins) if name else line, data)
        if name is None and not json_lines:
            console.note("castoff topics NAME shows all about one.")


def _show_kernels(name: str | None, python: str | None, console: Console) -> None:
    """Print a line for each operator and dispatch key that topics override; with a name, those of that topic."""
    with command_context(console) as context:
        interpreter = program_python(python, load_pin(ROOT / "pins", DEFAULT_PIN), context)
        found = kernels_in(str(interpreter.path), context.runner)
    rows = [(op, key, topics) for op, keys in sorted(found.items()) for key, topics in sorted(keys.items())]
    for operator, key, topics in rows:
        if name is None or name.rpartition("/")[2] in topics:
            data: dict[str, object] = {"operator": operator, "key": key, "topics": topics}
            console.result(f"{operator:<48}  {key:<13}  {' -> '.join(topics)}", data)


def _where(topic: Topic, pins: Sequence[str]) -> str:
    """Return the pins that a topic applies to, in few words."""
    own = [pin for pin in pins if topic.applies(pin)]
    return "all pins" if own == list(pins) else " ".join(own) or "no pin"


def _details(topic: Topic, pins: Sequence[str]) -> str:
    """Return all that topic.toml says to people."""
    states: dict[str, list[str]] = {}
    for pin in pins:
        states.setdefault(topic.pins.get(pin, "not stated"), []).append(pin)
    separator = f"\n{'':<11}"
    rows: tuple[tuple[str, Sequence[str]], ...] = (
        ("kind", [topic.kind]),
        ("pins", [f"{', '.join(where)}: {state}" for state, where in states.items()]),
        ("requires", topic.requires),
        ("upstream", topic.upstream),
        ("drop when", [topic.drop_when]),
        ("tests", topic.tests),
    )
    lines = [f"{label:<10} {separator.join(values)}" for label, values in rows if values]
    return "\n".join([f"{topic.key}: {topic.title}", "", topic.why.strip(), "", *lines, ""])


@command(app, "lint", "castoff lint")
def lint_command(json_lines: JsonOption = False) -> None:
    """Check every topic: its reason with a link, its state on all pins, small hunks, tests that fail on stock.

    Exit status 1 if there are problems.
    """
    with boundary(Console(json_lines=json_lines)) as console:
        findings = lint_topics(ROOT)
        for finding in findings:
            rows = (("expected", finding.expected), ("found", finding.found), ("next", finding.next_step))
            text = "".join(f"\n  {name:<8} {value}" for name, value in rows)
            console.result(f"{finding.topic}{text}", dict(asdict(finding)))
        if not findings:
            console.result("topics: no problems found", {"findings": 0})
    if findings:
        raise typer.Exit(1)


@command(app, "status", "castoff status")
def status_command(
    python: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The Python of an environment: say instead what it has of castoff."),
    ] = None,
    json_lines: JsonOption = False,
) -> None:
    """Show which topic applies to which pin, is upstream there already, or cannot be there, and why."""
    with boundary(Console(json_lines=json_lines)) as console:
        if python is not None:
            with command_context(console) as context:
                result = describe(find_target(python, context.runner))
            console.result(result.text, result.data)
            return
        status = read_status(ROOT)
        below = "\n".join(f"({number}) {reason}" for number, reason in enumerate(status.reasons(), start=1))
        if unproven := status.unproven():
            each = ", ".join(f"{topic} ({', '.join(pins)})" for topic, pins in unproven.items())
            below += f"\nHunks on C++ that nobody has proven, for source builds only: {each}"
        console.table(["topic", *status.pins], status.rows(), below, status.as_dict())
