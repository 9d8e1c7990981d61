"""The report of an audit: counts, checks, and the report as JSON, whose schema is report.schema.json."""

from __future__ import annotations

import base64
import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from castoff.audit.accumulations import NARROW_ACCUMULATION, Accumulation, read_accumulation
from castoff.audit.casts import PHASES, Cast, Frame, counted
from castoff.audit.departures import LEAVES_DEVICE, Departure, read_departure
from castoff.audit.graph import EXACTNESS, Graph

FORMAT = "castoff audit 1"

FORBIDDABLE = (*(name.replace(" ", "-") for name in EXACTNESS), NARROW_ACCUMULATION, LEAVES_DEVICE)
"""The values of ``--forbid``."""

ACCUMULATION_COLUMNS = ("accumulations", "of at most", "phase", "as", "in", "module", "op", "where")

COLUMNS = ("casts", "bytes", "phase", "from → to", "exactness", "why", "module", "op", "where", "removed by")


@dataclass(frozen=True)
class Report:
    """The result of an audit."""

    versions: Mapping[str, str]  # the versions of torch and torch_xla
    graphs: tuple[Graph, ...]  # the graphs that the step ran on the device
    casts: tuple[Cast, ...]  # the conversions in them
    accumulations: tuple[Accumulation, ...] = ()  # the narrow accumulations in them
    departures: tuple[Departure, ...] = ()  # the operators that torch_xla hands to the CPU

    @property
    def floating(self) -> tuple[Cast, ...]:
        """The casts between floating point dtypes: the ones that are counted and checked."""
        return tuple(cast for cast in self.casts if cast.floating)

    def totals(self) -> dict[str, Any]:
        """Return counts of the casts between floating point dtypes, and of the other conversions."""
        return totals_of(self.casts)

    def faults(self, max_casts: int | None = None, forbid: Iterable[str] = ()) -> list[str]:
        """Return the violations of the user's limits.

        Args:
            max_casts: The highest number of casts between floating point dtypes; None for any number.
            forbid: The forbidden kinds, of FORBIDDABLE.

        Raises:
            ValueError: There is no such kind.
        """
        floating = self.floating
        found = []
        if max_casts is not None and len(floating) > max_casts:
            found.append(f"{len(floating)} casts, where {max_casts} are allowed")
        for kind in forbid:
            if kind not in FORBIDDABLE:
                raise ValueError(f"expected one of {', '.join(FORBIDDABLE)}; found {kind!r}")
            if kind == NARROW_ACCUMULATION:
                found += self._narrow()
                continue
            if kind == LEAVES_DEVICE:
                found += [f"leaves the device, which is forbidden: {departure}" for departure in self.departures]
                continue
            bad = [cast for cast in floating if cast.exactness.replace(" ", "-") == kind]
            if bad:
                places = ", ".join(dict.fromkeys(str(cast.place or cast.op or cast.node) for cast in bad))
                found.append(f"{len(bad)} × {bad[0].exactness}, which is forbidden: {places}")
        return found

    def _narrow(self) -> list[str]:
        places = ", ".join(dict.fromkeys(str(found.place or found.op or found.hlo) for found in self.accumulations))
        count = len(self.accumulations)
        return [f"{count} × narrow accumulation, which is forbidden: {places}"] if count else []

    def accumulation_rows(self) -> list[list[str]]:
        """Return the cells of a table of the narrow accumulations, one row for similar ones, the longest first."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for found in self.accumulations:
            key = (found.phase, found.kind, found.dtype, alike(found.module), found.op, str(found.place or ""))
            groups.setdefault(key, []).append(found.length)
        ordered = sorted(groups.items(), key=lambda item: -max(item[1]))
        return [[str(len(lengths)), f"{max(lengths):,}", *key] for key, lengths in ordered]

    def rows(self, *, everything: bool = False, tpu: bool = False) -> list[list[str]]:
        """Return the cells of a table for a person: one row for similar casts, in the order of the program.

        Casts of modules whose paths differ only in numbers, such as the layers of a stack, are similar.

        Args:
            everything: Whether to add the conversions from and to integers.
            tpu: Whether to add a column with the number that the TPU compiler keeps.
        """
        groups: dict[tuple[str, ...], list[Cast]] = {}
        for cast in self.casts if everything else self.floating:
            key: tuple[str, ...] = (
                *(cast.phase, f"{cast.source} → {cast.target}", cast.exactness, cast.why, alike(cast.module), cast.op),
                *(str(cast.place or ""), cast.topic or cast.remedy),
            )
            groups.setdefault(key, []).append(cast)
        ordered = sorted(groups.items(), key=lambda item: (PHASES.index(item[0][0]), min(c.operation for c in item[1])))
        rows = []
        for key, casts in ordered:
            kept = sum(1 for cast in casts if cast.tpu)
            more = [f"keeps {kept}" if kept else "keeps none"] if tpu else []
            rows.append([str(len(casts)), f"{sum(cast.bytes for cast in casts):,}", *key, *more])
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data: report.schema.json describes it."""
        return {
            "format": FORMAT,
            "versions": dict(self.versions),
            "totals": self.totals(),
            "casts": [cast.as_dict() for cast in self.casts],
            "accumulations": [found.as_dict() for found in self.accumulations],
            "departures": [found.as_dict() for found in self.departures],
            "graphs": [_graph_as_dict(graph) for graph in self.graphs],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Return the report from its plain data.

        Raises:
            ValueError: It is not a report, or of another format.
        """
        if data.get("format") != FORMAT:
            raise ValueError(f"expected a report of the format {FORMAT!r}; found {data.get('format')!r}")
        return cls(
            data["versions"],
            tuple(map(_graph, data["graphs"])),
            tuple(map(read_cast, data["casts"])),
            tuple(map(read_accumulation, data["accumulations"])),
            tuple(map(read_departure, data.get("departures", ()))),
        )


def totals_of(casts: Sequence[Cast]) -> dict[str, Any]:
    """Return counts of the casts between floating point dtypes, and of the other conversions."""
    floating = [cast for cast in casts if cast.floating]
    return {
        "casts": len(floating),
        "bytes": sum(cast.bytes for cast in floating),
        "other_conversions": len(casts) - len(floating),
        **{f"by_{name}": counted(floating, name) for name in ("phase", "why", "exactness", "topic")},
    }


def _graph_as_dict(graph: Graph) -> dict[str, Any]:
    more = {"stablehlo": base64.b64encode(graph.stablehlo).decode()} if graph.stablehlo else {}
    if graph.partitioned:
        more["partitioned"] = graph.partitioned
    parts = {"reason": graph.reason, "place": graph.place, "partitions": graph.partitions}
    return {**parts, "ir": list(graph.ir), "hlo": graph.hlo, **more}


def _graph(data: Mapping[str, Any]) -> Graph:
    stablehlo = base64.b64decode(data.get("stablehlo", ""))
    parts = data["partitions"], data.get("partitioned", "")
    return Graph(data["reason"], data["place"], tuple(data["ir"]), data["hlo"], stablehlo, *parts)


def read_cast(data: Mapping[str, Any]) -> Cast:
    """Return the cast from its plain data."""
    frames = {name: Frame(**data[name]) if data[name] else None for name in ("place", "program")}
    return Cast(**{**data, **frames, "shape": tuple(data["shape"])})


def alike(module: str) -> str:
    """Return the path of a module with a star for each number, so that the layers of a stack have one path."""
    return ".".join("*" if part.isdecimal() else part for part in module.split("."))


def versions() -> dict[str, str]:
    """Return the versions of torch and torch_xla in this environment."""
    found = {}
    for project in ("torch", "torch_xla"):
        try:
            found[project] = importlib.metadata.version(project)
        except importlib.metadata.PackageNotFoundError:
            found[project] = "none"
    return found


def summary(report: Report) -> str:
    """Return the counts of a report as text."""
    totals = report.totals()
    lines = [f"{totals['casts']} casts, {totals['bytes']:,} bytes moved by them in one step"]
    devices = max((graph.partitions for graph in report.graphs if graph.partitioned), default=1)
    if devices > 1:
        of_one = sum(graph.bytes_of_a_device() for graph in report.graphs)
        lines.append(f"  {of_one:,} bytes on each of {devices} devices")
    for name in ("phase", "why", "exactness", "topic"):
        parts = [f"{key} {count}" for key, count in totals[f"by_{name}"].items() if key != "None"]
        if parts:
            title = {"topic": "removable by"}.get(name, f"by {name}")
            lines.append(f"  {title + ':':<14} {', '.join(parts)}")
    remedies = dict.fromkeys((cast.topic, cast.remedy) for cast in report.floating if cast.topic is not None)
    lines += [f"  {topic}: {remedy}" for topic, remedy in remedies]
    if totals["other_conversions"]:
        lines.append(f"  and {totals['other_conversions']} conversions from or to integers")
    if report.accumulations:
        kinds = Counter(f"{found.kind} in {found.dtype}" for found in report.accumulations)
        longest = max(found.length for found in report.accumulations)
        lines.append(f"{len(report.accumulations)} narrow accumulations, the longest of {longest:,} elements")
        lines.append(f"  {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}")
    if report.departures:
        times = sum(found.count for found in report.departures)
        lines.append(f"operators leave the device {times} times a step, each of which cuts the graph:")
        lines += [f"  {found}" for found in report.departures]
    return "\n".join(lines)


def compared(reports: Mapping[str, Report]) -> list[list[str]]:
    """Return the cells of a table with a column for each report.

    Args:
        reports: The reports by their wheels.
    """
    totals = [report.totals() for report in reports.values()]
    rows = [["casts", *(str(total["casts"]) for total in totals)]]
    for name in ("phase", "why", "exactness"):
        keys = dict.fromkeys(key for total in totals for key in total[f"by_{name}"])
        rows += [[f"  {name}: {key}", *(str(total[f"by_{name}"].get(key, 0)) for total in totals)] for key in keys]
    rows.append(["narrow accumulations", *(str(len(report.accumulations)) for report in reports.values())])
    left = [sum(found.count for found in report.departures) for report in reports.values()]
    rows.append(["operators that leave the device", *map(str, left)])
    rows.append(["bytes moved by casts", *(f"{total['bytes']:,}" for total in totals)])
    return rows
