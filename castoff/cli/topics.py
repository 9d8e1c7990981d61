"""topics, lint and status: list and check the topics, and show their state on each pin."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from castoff.cli.boundary import boundary
from castoff.cli.options import JsonOption
from castoff.core.console import Console
from castoff.core.context import command_context
from castoff.core.places import ROOT
from castoff.inplace.commands import describe
from castoff.inplace.target import find_target
from castoff.model.lint import lint_topics
from castoff.model.status import read_status
from castoff.model.topics import load_topics

app = typer.Typer()


@app.command("topics")
def topics_command(json_lines: JsonOption = False) -> None:
    """List the topics: every reason to differ from upstream, and the pins it applies to."""
    with boundary(Console(json_lines=json_lines)) as console:
        for topic in load_topics(ROOT / "patches"):
            pins = ", ".join(f"{pin}: {state}" for pin, state in topic.pins.items())
            data: dict[str, object] = {
                "name": topic.key,
                "title": topic.title,
                "kind": topic.kind,
                "pins": topic.pins,
                "requires": list(topic.requires),
                "upstream": list(topic.upstream),
                "drop_when": topic.drop_when,
            }
            console.result(f"{topic.key:<32} {topic.title}\n{'':<32} {topic.kind}; {pins}", data)


@app.command("lint")
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


@app.command("status")
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
        console.table(["topic", *status.pins], status.rows(), below, status.as_dict())
