"""cache: what castoff keeps between builds, how large it is, and how to be rid of it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from castoff.cli.boundary import boundary
from castoff.cli.commands import command
from castoff.cli.options import JsonOption
from castoff.core.cache import Cache, Entry, sizes
from castoff.core.console import Console
from castoff.core.places import cache_root

app = typer.Typer(invoke_without_command=True)

KINDS = {
    "environments": "Pythons with wheels, of castoff env",
    "objects": "compiled files of topics",
    "overlays": "compiled overlays",
    "sha256": "wheels as downloaded",
    "tests": "environments of a ci/test.sh that was killed",
    "tmp": "what builds have begun",
    "tpu": "answers of the TPU compiler",
    "unpacked": "headers and libraries of wheels",
    "upstream-tests": "outcomes of upstream's own tests",
}


_HELP = """`castoff cache`

Show what castoff keeps between builds: its size by kind, and when it was used last.

What environments share with each other counts once; what they share with uv's cache counts here, too."""


@app.callback(invoke_without_command=True, help=_HELP)
def cache_command(context: typer.Context, json_lines: JsonOption = False) -> None:
    """Show what castoff keeps between builds."""
    if context.invoked_subcommand is None:
        with boundary(Console(json_lines=json_lines)) as console:
            _show(Cache(cache_root(), console), console)


@command(app, "prune", "castoff cache prune")
def prune_command(
    days: Annotated[float, typer.Option(help="Remove what was not used for so many days; 0: everything.")] = 7,
    json_lines: JsonOption = False,
) -> None:
    """Remove what was not used for a week.

    It is downloaded or made again when needed. Environments that were not used for a week go by themselves, too, when
    another one is made. Let no build run beside `--days 0`.
    """
    with boundary(Console(json_lines=json_lines)) as console:
        cache = Cache(cache_root(), console)
        before = cache.entries()
        old = [entry for entry in before if entry.used <= time.time() - days * 86400]
        for entry in old:
            cache.remove(entry)
        freed = sum(sizes(before).values()) - sum(sizes(cache.entries()).values())
        console.result(
            f"{len(old)} of {len(before)} entries removed, {_gigabytes(freed)} GB",
            {"removed": [str(entry.path) for entry in old], "bytes": freed},
        )


def _show(cache: Cache, console: Console) -> None:
    entries = cache.entries()
    size = sizes(entries)
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry)
    rows = [
        [kind, KINDS.get(kind, ""), str(len(own)), _gigabytes(size[kind]), _days(own[-1]), _days(own[0])]
        for kind, own in kinds.items()
    ]
    columns = ("kind", "what", "entries", "GB", "last used, days", "oldest, days")
    total = _gigabytes(sum(size.values()))
    below = f"{total} GB in {cache.root}. castoff cache prune removes what is older than a week."
    console.table(columns, rows, below, {"root": str(cache.root), "bytes": size})


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f}"


def _days(entry: Entry) -> str:
    return f"{max(0.0, time.time() - entry.used) / 86400:.1f}"
