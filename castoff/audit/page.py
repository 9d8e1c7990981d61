"""The audit as one page of HTML without other files: page.html, with page.css, page.js and vendor/ put into it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from castoff.audit import advice
from castoff.audit.casts import Cast
from castoff.audit.graph import Graph
from castoff.audit.report import Report, compared
from castoff.audit.trials import Trial, as_data
from castoff.tpu.program import WHEELS

LIMIT = 1_500_000
"""The bytes that the page may have."""

_HERE = Path(__file__).parent
_INLINE = re.compile(r"/\*(file|data) ([\w./-]+)\*/")
_TORCHS_OWN = re.compile(r", location=\S+@_ops\.py:\d+")  # where torch dispatches, of every operation
_AROUND = 3  # lines of source before and after a cast's


def page(program: str, reports: Mapping[str, Report], trials: Sequence[Trial] = ()) -> str:
    """Return the page of a step.

    IR and HLO are left out, and the page says so, if it would have more than LIMIT bytes with them.

    Args:
        reports: The reports by their wheels: "here", and "stock" if there is one.
        trials: What settings remove that were tried.
    """
    data = {
        "program": program,
        "reports": {name: _report(report) for name, report in reports.items()},
        "trials": as_data(trials),
        "compared": compared(reports) if len(reports) > 1 else [],
        "titles": {name: f"{WHEELS[name]} ({report.versions['torch_xla']})" for name, report in reports.items()},
        "sources": _sources(reports["here"].casts),
    }
    texts = [_graph(graph) for graph in reports["here"].graphs]
    found = _filled({"report": _packed(data), "graphs": _packed(texts)})
    return found if len(found.encode()) <= LIMIT else _filled({"report": _packed(data), "graphs": ""})


def _report(report: Report) -> dict[str, Any]:
    return {
        "versions": dict(report.versions),
        "casts": [_cast(cast) for cast in report.casts],
        "accumulations": len(report.accumulations),
        "graphs": len(report.graphs),
        "advice": advice.as_data(report),
        "patched": "+castoff" in report.versions["torch_xla"],
    }


def _cast(cast: Cast) -> dict[str, Any]:
    # The IR around it is in the graph.
    return {
        **{key: value for key, value in cast.as_dict().items() if key != "ir"},
        "advised": advice.is_removable(cast),
    }


def _graph(graph: Graph) -> dict[str, Any]:
    return {"ir": [_TORCHS_OWN.sub("", line) for line in graph.ir], "hlo": graph.hlo.splitlines()}


def _sources(casts: Iterable[Cast]) -> dict[str, tuple[int, list[str]]]:
    """Return the lines around each place of a cast, by "file:line": the number of the first, and the lines."""
    files: dict[str, list[str]] = {}
    found = {}
    for frame in (frame for cast in casts for frame in (cast.place, cast.program) if frame is not None):
        if frame.file not in files:
            files[frame.file] = _lines(Path(frame.file))
        first = max(frame.line - _AROUND, 1)
        lines = files[frame.file][first - 1 : frame.line + _AROUND]
        if frame.line <= len(files[frame.file]):
            found[f"{frame.file}:{frame.line}"] = (first, lines)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []  # a program without a file, such as one typed into Python


def _packed(data: object) -> str:
    """Return data as JSON, compressed, in the alphabet of base64: no text of it can end a script element."""
    return base64.b64encode(gzip.compress(json.dumps(data).encode(), mtime=0)).decode()


def _filled(data: Mapping[str, str]) -> str:
    """Return the page with its files and data."""

    def content(match: re.Match[str]) -> str:
        kind, name = match.groups()
        return data[name] if kind == "data" else (_HERE / name).read_text(encoding="utf-8").rstrip("\n")

    return _INLINE.sub(content, (_HERE / "page.html").read_text(encoding="utf-8"))
