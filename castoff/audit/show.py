"""Shows audits: tables for a person, JSON for a program, files for later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castoff.audit.page import page
from castoff.audit.report import COLUMNS, Report, compared, summary, text_table
from castoff.console import Console
from castoff.tpu.program import WHEELS


@dataclass(frozen=True)
class Files:
    """Where the user wants files.

    Attributes:
        html: The page; None for none.
        report: The report as JSON; None for none.
    """

    html: Path | None
    report: Path | None


def show(
    program: str,
    reports: Mapping[str, Report],
    max_casts: int | None,
    forbid: Sequence[str],
    *,
    files: Files,
    everything: bool,
    console: Console,
) -> list[str]:
    """Show the audits of a step.

    Args:
        program: What was audited, as the user named it.
        reports: The reports by whose wheels they are of: "here", and maybe "stock".
        max_casts: How many casts there may be.
        forbid: The kinds that there may not be.
        files: Where the user wants files.
        everything: Whether to show conversions from and to integers.
        console: Where to show it.

    Returns:
        What is not as it has to be.
    """
    here = reports["here"]
    faults = here.faults(max_casts, forbid)
    below = summary(here)
    if "stock" in reports:
        titles = [f"{WHEELS[name]} ({report.versions['torch_xla']})" for name, report in reports.items()]
        below += "\n\n" + text_table(["", *titles], compared(reports))
    below += "".join(f"\nnot well: {fault}" for fault in faults)
    columns, rows = _with_tpu(here, everything)
    data: dict[str, object] = {name: report.as_dict() for name, report in reports.items()}
    if files.report is not None:
        files.report.write_text(json.dumps(here.as_dict(), indent=1) + "\n", encoding="utf-8")
    if files.html is not None:
        files.html.write_text(page(program, reports), encoding="utf-8")
    console.table(columns, rows, below, {"program": program, "faults": faults, **data})
    return faults


def _with_tpu(report: Report, everything: bool) -> tuple[list[str], list[list[str]]]:
    """Return the table, with a column of what the TPU keeps if that is known."""
    if all(cast.tpu is None for cast in report.casts):
        return list(COLUMNS), report.rows(everything=everything)
    return [*COLUMNS, "on the TPU"], report.rows(everything=everything, tpu=True)


def show_meta(
    found: Mapping[str, Any], max_casts: int | None, forbid: Sequence[str], file: Path | None, console: Console
) -> list[str]:
    """Show what was found on the meta device; return what is not as it has to be."""
    raise NotImplementedError
