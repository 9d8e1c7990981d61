"""The audit as one page of HTML without other files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from castoff.audit.report import Report

_TEMPLATE = Path(__file__).parent / "page.html"
_MARK = "/*DATA*/"


def page(program: str, reports: Mapping[str, Report]) -> str:
    """Return the page of a step.

    Args:
        program: What was audited.
        reports: The reports by their wheels: "here", and "stock" if there is one.
    """
    data = {
        "program": program,
        "reports": {
            name: {
                "versions": dict(report.versions),
                "totals": report.totals(),
                "casts": [cast.as_dict() for cast in report.casts],
                "graphs": [
                    {"reason": graph.reason, "place": graph.place, "lines": len(graph.ir)} for graph in report.graphs
                ],
            }
            for name, report in reports.items()
        },
    }
    # In a script element only "</" and "<!--" could end the data.
    text = json.dumps(data).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace(_MARK, text)
