"""The output of a command, for a person, a log or a program.

One of three forms, chosen once: progress bars on a terminal, plain lines elsewhere (a CI log),
or one JSON object a line with ``--json``. Progress goes to standard error; results, and all of
the JSON, to standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from castoff.core.errors import CastoffError
from castoff.core.text_table import text_table

Advance = Callable[[int, int], None]
"""Called with ``(done, total)`` in bytes while data is transferred."""


def no_advance(_done: int, _total: int) -> None:
    """Tell nobody."""


class Console:
    """Reports steps, progress, notes, results and errors.

    Args:
        json_lines: Write machine-readable JSON lines instead of text.
        verbose: Also report each command that is run.
        out: Where results go; standard output unless a test says otherwise.
        err: Where progress and errors go; standard error unless a test says otherwise.
    """

    def __init__(
        self,
        *,
        json_lines: bool = False,
        verbose: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self._json = json_lines
        self._verbose = verbose
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr
        self._rich = RichConsole(file=self._err, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, name: str, about: str) -> Iterator[None]:
        """Report a stage: that it began, and how long it took.

        Args:
            about: What it does, for a person.
        """
        self._event({"event": "step", "name": name, "about": about, "state": "start"})
        self._print(f"[bold]{name:<8}[/] {escape(about)}", f"{name:<8} {about}")
        start = time.monotonic()
        yield
        seconds = round(time.monotonic() - start, 1)
        self._event({"event": "step", "name": name, "state": "done", "seconds": seconds})
        self._print(f"         [dim]{seconds} s[/]", f"         {seconds} s")

    @contextmanager
    def progress(self, about: str) -> Iterator[Advance]:
        """Show the progress of a long transfer, on a terminal.

        Yields:
            The function to call with the bytes done and the bytes in total.
        """
        if self._json or not self._rich.is_terminal:
            yield no_advance
            return
        columns = (TextColumn("         {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=self._rich, transient=True) as bars:
            task = bars.add_task(escape(about), total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)

    def note(self, text: str) -> None:
        """Write a note."""
        self._event({"event": "note", "text": text})
        self._print(f"         {escape(text)}", f"         {text}")

    def warn(self, text: str) -> None:
        """Write a warning."""
        self._event({"event": "warning", "text": text})
        self._print(f"[yellow]warning[/]  {escape(text)}", f"warning  {text}")

    def command(self, text: str) -> None:
        """Report a command about to be run, if the user wants to see commands."""
        if self._verbose:
            self._event({"event": "command", "text": text})
            self._print(f"         [dim]$ {escape(text)}[/]", f"         $ {text}")

    def result(self, text: str, data: dict[str, object]) -> None:
        """Write the result of the command.

        Args:
            data: The same for a program.
        """
        if self._json:
            self._event({"event": "result", **data})
        else:
            print(text, file=self._out, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], below: str, data: dict[str, object]) -> None:
        """Write a table as the result; without rows, only the text below it.

        Args:
            data: The same for a program.
        """
        if not rows:
            self.result(below, data)
            return
        if self._json or not self._out.isatty():
            self.result(f"{text_table(columns, rows)}\n\n{below}".rstrip(), data)
            return
        table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*map(escape, row))
        rich = RichConsole(file=self._out, highlight=False)
        rich.print(table)
        rich.print(escape(below))

    def error(self, error: CastoffError) -> None:
        """Show an error: what was expected, what was found, what to do."""
        if self._json:
            self._event({"event": "error", **error.as_dict()})
            return
        rows = (("expected", error.expected), ("found", error.found), ("next", error.next_step))
        self._print(f"[bold red]error[/]    {escape(error.summary)}", f"error    {error.summary}")
        for label, text in rows:
            indented = text.replace("\n", "\n           ")
            self._print(f"[bold]{label:>8}[/]   {escape(indented)}", f"{label:>8}   {indented}")

    def _event(self, data: dict[str, object]) -> None:
        if self._json:
            print(json.dumps(data), file=self._out, flush=True)

    def _print(self, markup: str, plain: str) -> None:
        if self._json:
            return
        if self._rich.is_terminal:
            self._rich.print(markup)
        else:
            print(plain, file=self._err, flush=True)
