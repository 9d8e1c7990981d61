"""Shows audits: tables for a person, JSON for a program, and files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castoff.audit.accumulations import NARROW_ACCUMULATION
from castoff.audit.lock import check_lock, lock_text
from castoff.audit.page import page
from castoff.audit.report import ACCUMULATION_COLUMNS, COLUMNS, Report, compared, read_cast, summary
from castoff.audit.trials import Trial, as_data
from castoff.core.console import Console
from castoff.core.text_table import text_table
from castoff.tpu.program import WHEELS


@dataclass(frozen=True)
class Files:
    """The files to write."""

    html: Path | None = None  # the page; None for none
    report: Path | None = None  # the report as JSON; None for none
    lock: Path | None = None  # the lock file; None for none


def show(
    program: str,
    reports: Mapping[str, Report],
    max_casts: int | None,
    forbid: Sequence[str],
    *,
    lock: Path | None = None,
    files: Files,
    everything: bool,
    trials: Sequence[Trial] = (),
    console: Console,
) -> list[str]:
    """Show the audits of a step.

    Args:
        program: The program, as the user named it.
        reports: The reports by their wheels: "here", and "stock" if there is one.
        lock: The lock file to compare with; None for none.
        everything: Whether to show conversions from and to integers.
        trials: What settings remove that were tried.

    Returns:
        The violations of the limits.
    """
    here = reports["here"]
    faults = here.faults(max_casts, forbid) + _locked(here, lock, files)
    below = summary(here)
    if (forbid and NARROW_ACCUMULATION in forbid) or everything:
        below += "\n\n" + text_table(ACCUMULATION_COLUMNS, here.accumulation_rows())
    if "stock" in reports:
        titles = [f"{WHEELS[name]} ({report.versions['torch_xla']})" for name, report in reports.items()]
        below += "\n\n" + text_table(["", *titles], compared(reports))
    below += "".join(f"\ntried: {trial}" for trial in trials)
    below += "".join(f"\nproblem: {fault}" for fault in faults)
    columns, rows = _with_tpu(here, everything)
    data: dict[str, object] = {name: report.as_dict() for name, report in reports.items()}
    if files.report is not None:
        files.report.write_text(json.dumps(here.as_dict(), indent=1) + "\n", encoding="utf-8")
    if files.html is not None:
        files.html.write_text(page(program, reports, trials), encoding="utf-8")
    console.table(columns, rows, below, {"program": program, "faults": faults, "trials": as_data(trials), **data})
    return faults


def _locked(report: Report, lock: Path | None, files: Files) -> list[str]:
    """Write the lock file, if one is to be written; return the violations of the one to compare with."""
    if files.lock is not None:
        files.lock.write_text(lock_text(report), encoding="utf-8")
    return check_lock(lock, report) if lock is not None else []


def _with_tpu(report: Report, everything: bool) -> tuple[list[str], list[list[str]]]:
    """Return the table, with a column for the TPU if that is known."""
    if all(cast.tpu is None for cast in report.casts):
        return list(COLUMNS), report.rows(everything=everything)
    return [*COLUMNS, "on the TPU"], report.rows(everything=everything, tpu=True)


def show_meta(
    program: str,
    found: Mapping[str, Any],
    max_casts: int | None,
    forbid: Sequence[str],
    *,
    lock: Path | None = None,
    files: Files,
    console: Console,
) -> list[str]:
    """Show a report of the meta device.

    Args:
        program: The program, as the user named it.
        lock: The lock file to compare with; None for none.
        files: The files to write; no page.

    Returns:
        The violations of the limits.
    """
    report = Report(found["versions"], (), tuple(map(read_cast, found["casts"])))
    faults = report.faults(max_casts, forbid) + _locked(report, lock, files)
    rows = report.rows()
    parts = [_meta_numbers(found), summary(report)]
    parts += [
        f"guessed: {guess['op']} × {guess['count']} at {guess['place']}: {guess['why']}"
        for guess in found["without_kernel"]
    ]
    parts += [f"problem: {fault}" for fault in faults]
    if files.report is not None:
        files.report.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    console.table(COLUMNS, rows, "\n".join(parts), {"program": program, "faults": faults, "meta": dict(found)})
    return faults


def _meta_numbers(found: Mapping[str, Any]) -> str:
    flops, memory = found["flops"], found["memory"]
    flow = Counter[str]()
    for step in found["dtype_flow"]:
        flow[f"{step['from']} → {step['to']}"] += step["operations"]
    rows = {
        "operations": f"{found['operations']:,} in {found['seconds']:.2f} s",
        "FLOPs": f"{flops['total']:.4g}, {flops['forward']:.4g} of them in the forward",
        "parameters": _bytes(memory["parameter_bytes"]),
        "gradients": f"{_bytes(memory['gradient_bytes'])} kept, {_bytes(memory['peak_gradient_bytes'])} at the peak",
        "activations": f"{_bytes(memory['peak_activation_bytes'])} at the peak",
        "both": f"{_bytes(memory['peak_bytes'])} at the peak, without parameters and inputs",
        "dtypes": ", ".join(f"{name} {count}" for name, count in flow.most_common(6)),
    }
    return "\n".join(f"{name:<12} {text}" for name, text in rows.items())


def _bytes(count: int) -> str:
    """Return a number of bytes for a person."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = min((max(count, 1).bit_length() - 1) // 10, len(units) - 1)
    return f"{count / 1024**power:,.4g} {units[power]}"
