"""Doctor: examine an environment with the wheels, and the machine under it.

The examination itself is a module in the torch wheel, ``castoff_doctor``, because a cluster's host has
the wheels and not castoff. Here it is run with the Python of that environment.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from castoff.core.context import Context
from castoff.core.errors import MachineError
from castoff.core.interpreter import Interpreter

MODULE = Path("patches/torch/kill-switch/files/castoff_doctor.py")
"""The examination, in castoff's tree."""

_STYLES = {"ok": "green", "note": "yellow", "fault": "bold red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str  # its name
    status: str  # "ok", "note" or "fault"
    found: str  # what was found
    next_step: str  # what to do about it


def examine(root: Path, python: Interpreter, require_tpu: bool, context: Context) -> tuple[bool, list[Finding]]:
    """Examine an environment.

    Args:
        require_tpu: Whether a missing TPU is a fault.

    Returns:
        Whether there are no problems, and the findings.

    Raises:
        MachineError: The examination did not come to its end.
    """
    assert python.path is not None
    command: list[str | Path] = [python.path, root / MODULE, "--json", *(["--require-tpu"] if require_tpu else [])]
    completed = context.runner.run(command, name="doctor", check=False)
    try:
        answer = json.loads(completed.output.splitlines()[-1])
        return bool(answer["well"]), [Finding(**row) for row in answer["findings"]]
    except (IndexError, ValueError, TypeError, KeyError) as error:
        raise MachineError(
            f"{python.path} could not be examined",
            expected="the examination ends with its findings",
            found=completed.tail,
            next_step=f"Read the whole log: {completed.log}",
        ) from error


def report(findings: list[Finding]) -> str:
    """Return the findings as a table for a person."""
    table = Table("", "check", "found", box=None, header_style="bold", pad_edge=False)
    for finding in findings:
        found = Text(finding.found)
        if finding.status != "ok" and finding.next_step:
            found.append(f"\n→ {finding.next_step}", style="dim")
        table.add_row(Text(finding.status, style=_STYLES[finding.status]), finding.check, found)
    file = io.StringIO()
    console = RichConsole(file=file, force_terminal=sys.stdout.isatty(), width=None if sys.stdout.isatty() else 120)
    console.print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
