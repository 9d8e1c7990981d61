"""Runs jobs in forks of one process that has imported what they need, with a limit of time for each."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

SECONDS, PROCESSOR_SECONDS = 600.0, 90
"""A machine that is busy with something else gives no processor time, and what waits for itself takes none."""

Row = dict[str, Any]


class Fork:
    """A job in a process of its own, which begins in an empty folder."""

    def __init__(self, name: str, job: Callable[[str], Row], log: Path) -> None:
        self.name, self.begun = name, time.monotonic()
        self.read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._run(job, write, log)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(write)

    def _run(self, job: Callable[[str], Row], write: int, log: Path) -> None:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            row = job(self.name)
            os.chdir("/")
        os.write(write, json.dumps(row).encode())
        os._exit(0)

    def row(self) -> Row:
        """What it found. Call this once its end can be read, or its time is over."""
        late = not select.select([self.read], [], [], 0)[0]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if late:
                os.killpg(self.pid, signal.SIGKILL)
        text = b"".join(iter(lambda: os.read(self.read, 65536), b""))
        os.close(self.read)
        _, status, used = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        seconds = round(used.ru_utime + used.ru_stime, 1)
        if text:
            return {**json.loads(text), "seconds": seconds}
        if late or code == -signal.SIGXCPU:
            return {"name": self.name, "kind": "hangs", "detail": "", "seconds": seconds}
        return {"name": self.name, "kind": "dies", "detail": f"exit status {code}", "seconds": seconds}


def rows(names: Iterable[str], job: Callable[[str], Row], *, processes: int, logs: Path) -> Iterator[Row]:
    """The row of each name, in the order in which the jobs end."""
    waiting, running = list(names)[::-1], {}
    while waiting or running:
        while waiting and len(running) < processes:
            name = waiting.pop()
            fork = Fork(name, job, log_of(name, logs))
            running[fork.read] = fork
        ready = set(select.select(list(running), [], [], 1.0)[0])
        late = {read for read, fork in running.items() if time.monotonic() - fork.begun > SECONDS}
        for read in ready | late:
            yield running.pop(read).row()


def log_of(name: str, logs: Path) -> Path:
    """Where what a job prints goes."""
    return logs / (name.replace("/", ".") + ".log")
