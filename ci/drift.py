"""Checks the topics against today's upstream, and reports what changed since the last run.

    .venv/bin/python ci/drift.py OUT torch=2.15 torch=main torch_xla=master [--before OUT] [--wheels torch=URL]

Each PROJECT=AGAINST is a run of `castoff drift`: a branch, a release, or the folder of a checkout. OUT gets
report.md, for people, table.md, a row for each topic and a column for each upstream, which the site shows, and
drift.json, for `--before` of the next run. Exit status 1 if the result of a topic changed, 2 if an upstream could
not be checked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castoff.build.apply import Outcome
from castoff.core.console import Console
from castoff.core.pipconfig import current_uv_environment
from castoff.core.places import ROOT
from castoff.core.runner import Runner
from castoff.core.tools import tool
from castoff.upstream.drift import TEST_TOOLS

CHANGED, NOT_LOOKED_AT = 1, 2
_FINE = (Outcome.CLEAN.value, Outcome.ALREADY_UPSTREAM.value)
_MOST_DETAIL = 4000  # characters of one conflict in the report


@dataclass(frozen=True)
class Fare:
    """The result of a topic on an upstream."""

    applies: str  # "yes", or the files that conflict
    upstream: str  # how much of it is upstream already
    details: str = ""  # the conflicts, for a maintainer
    tests: str = ""  # how many of its tests show that it is upstream already, as "3 of 19"

    @property
    def cell(self) -> str:
        """It in a word or two."""
        arrived, _, every = self.tests.partition(" of ")
        if self.tests and arrived == every:
            return f"upstream ({self.tests})"
        return ("applies" if self.applies == "yes" else "conflicts") + (f" ({self.tests})" if self.tests else "")


def fare_of(row: Mapping[str, Any]) -> Fare:
    """Return the result of a topic from `castoff drift --json`."""
    conflicts = [one for one in row["files"] if one["outcome"] not in _FINE]
    failed = "" if row["applies"] else ", ".join(f"{one['path']}: {one['outcome']}" for one in conflicts)
    details = "" if row["applies"] else "\n".join(f"{one['path']}: {one['detail']}" for one in conflicts)
    upstream = "not tried" if row["upstream"] is None else f"{row['upstream']:.0%}"
    arrived, absent = (sum(one[what] for one in row.get("tests", ())) for what in ("arrived", "absent"))
    return Fare(failed or "yes", upstream, details, f"{arrived} of {arrived + absent}" if arrived + absent else "")


def look(project: str, against: str, *options: str) -> tuple[dict[str, Fare], str]:
    """Run `castoff drift`; return the result of each topic, or nothing and the reason."""
    command = [sys.executable, "-m", "castoff", "drift", "--json", "--project", project, "--against", against, *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for event in events:
        if event["event"] == "result":
            return {row["topic"]: fare_of(row) for row in event["topics"]}, event["against"]
    errors = [f"{event['summary']}: {event['found']}" for event in events if event["event"] == "error"]
    return {}, "; ".join(errors) or f"castoff drift ended with exit status {done.returncode}"


def environment_of(index: str, folder: Path) -> Path:
    """Install the newest torch of an index, pre-releases included, and what tests need; return the Python."""
    runner = Runner(folder.with_name(f"{folder.name}-logs"), Console())
    settings = current_uv_environment(runner)
    python = folder / "bin" / "python"
    install: list[str | Path] = [tool("uv"), "pip", "install", "--python", python]
    runner.run([tool("uv"), "venv", "--no-project", "--python", sys.executable, folder], name="venv", env=settings)
    runner.run([*install, "--prerelease", "allow", "--default-index", index, "torch"], name="torch", env=settings)
    lock = ROOT / "ci" / "requirements.lock"
    runner.run([*install, "--constraint", lock, *TEST_TOOLS], name="tools", env=settings)
    return python


def changes(before: Mapping[str, Mapping[str, Fare]], now: Mapping[str, Mapping[str, Fare]]) -> Iterator[str]:
    """Yield the differences from before, for the upstreams that were checked both times."""
    for upstream in before.keys() & now.keys():
        for topic in sorted(before[upstream].keys() | now[upstream].keys()):
            old, new = before[upstream].get(topic), now[upstream].get(topic)
            if old is None or new is None:
                yield f"{topic} on {upstream}: {'new here' if old is None else 'gone'}"
                continue
            for what, was, is_now in (("applies", old.applies, new.applies), ("upstream", old.upstream, new.upstream)):
                if was != is_now:
                    yield f"{topic} on {upstream}: {what}: {was} → {is_now}"


def report(now: Mapping[str, Mapping[str, Fare]], about: Mapping[str, str], changed: list[str] | None) -> str:
    """Return the report in Markdown.

    Args:
        now: The result of each topic on each upstream.
        about: What each upstream is, or why it could not be checked.
        changed: What changed; None if there is no earlier run.
    """
    lines = ["# Drift", ""]
    if changed is not None:
        lines += [*(f"- {line}" for line in changed), ""] if changed else ["Nothing changed.", ""]
    for upstream, said in about.items():
        lines += [f"## {upstream}", "", said, ""]
        if upstream not in now:
            continue
        lines += ["| topic | applies | upstream already |", "|---|---|---|"]
        lines += [f"| `{topic}` | {fare.applies} | {fare.upstream} |" for topic, fare in now[upstream].items()]
        for topic, fare in now[upstream].items():
            if fare.details:
                text = fare.details[:_MOST_DETAIL]
                lines += ["", f"<details><summary>{topic}</summary>", "", "````", text, "````", "", "</details>"]
        lines.append("")
    return "\n".join(lines)


def table(results: Mapping[str, Mapping[str, Fare]]) -> str:
    """Return a table in Markdown: of each topic, how it fares on each upstream."""
    topics = sorted({topic for fares in results.values() for topic in fares})
    upstreams = sorted(results, key=_order)
    rows = [["topic", *upstreams], ["---"] * (len(upstreams) + 1)]
    for topic in topics:
        fares = [results[upstream].get(topic) for upstream in upstreams]
        rows.append([f"`{topic}`", *(fare.cell if fare is not None else "" for fare in fares)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _order(upstream: str) -> tuple[str, bool, tuple[int, ...], str]:
    project, _, against = upstream.partition("=")
    release = all(part.isdecimal() for part in against.split("."))
    return project, not release, tuple(map(int, against.split("."))) if release else (), against


def read(path: Path) -> dict[str, dict[str, Fare]] | None:
    """Return the results of the last run, if there are any."""
    if not path.is_file():
        return None
    written = json.loads(path.read_text(encoding="utf-8"))
    return {upstream: {topic: Fare(**fare) for topic, fare in fares.items()} for upstream, fares in written.items()}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder for the report")
    parser.add_argument("upstreams", nargs="+", metavar="PROJECT=AGAINST", help="such as torch=main")
    parser.add_argument("--before", type=Path, help="the folder of the last report, if there is one")
    parser.add_argument("--tests", action="store_true", help="also run the tests on stock wheels of the releases")
    parser.add_argument("--index", metavar="URL", help="an index that goes before the default one, for releases")
    parser.add_argument(
        "--wheels", metavar="PROJECT=URL", help="an index with stock wheels of it: run the tests on those"
    )
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    now: dict[str, dict[str, Fare]] = {}
    about: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        wheels = dict([arguments.wheels.split("=", 1)] if arguments.wheels else [])
        pythons = {project: environment_of(index, Path(scratch) / project) for project, index in wheels.items()}
        for upstream in arguments.upstreams:
            project, _, against = upstream.partition("=")
            is_release = against.replace(".", "").isdecimal()
            options = ["--no-tests"]
            if arguments.tests and is_release:
                options = []
            elif project in pythons and not is_release:
                options = ["--python", str(pythons[project])]
            if arguments.index and is_release:
                options += ["--index", arguments.index]
            fares, about[upstream] = look(project, against, *options)
            if fares:
                now[upstream] = fares
    before = read(arguments.before / "drift.json") if arguments.before else None
    changed = None if before is None else sorted(changes(before, now))
    # An upstream that is not reachable today keeps its last results for the next comparison.
    seen = {**(before or {}), **now}
    plain = {upstream: {topic: vars(fare) for topic, fare in fares.items()} for upstream, fares in seen.items()}
    (out / "drift.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
    text = report(now, about, changed)
    (out / "report.md").write_text(text, encoding="utf-8")
    (out / "table.md").write_text(table(seen), encoding="utf-8")
    print(text)
    if now.keys() != about.keys():
        return NOT_LOOKED_AT
    return CHANGED if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
