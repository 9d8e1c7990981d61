"""The one place that runs other programs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from castoff.core.console import Console
from castoff.core.errors import CommandError, MachineError, full_disk

_SHOWN_LINES = 20
_STEERS_TESTS = ("LD_", "PYTEST", "PYTHON", "PYTORCH_TEST_")
# With CI set, upstream's tests need upstream's own CI packages and lists of tests to skip.
_MEANS_UPSTREAMS_CI = frozenset({"CI", "DISABLED_TESTS_FILE", "SLOW_TESTS_FILE"})


@dataclass(frozen=True)
class Completed:
    """A program that has ended."""

    args: tuple[str, ...]  # the command
    returncode: int  # its exit status
    output: str  # what it wrote to standard output and standard error, in order
    log: Path  # the file with the same output

    @property
    def tail(self) -> str:
        """The last lines of the output, where programs report errors."""
        return "\n".join(self.output.rstrip().splitlines()[-_SHOWN_LINES:]) or "(no output)"


def environment_for_tests() -> dict[str, str]:
    """Return the environment variables without those that would change which tests run, or how, in another Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_STEERS_TESTS) and name not in _MEANS_UPSTREAMS_CI
    }


class Runner:
    """Runs programs, each with a log file of its own.

    Args:
        logs: The folder for the logs; made when first needed.
    """

    def __init__(self, logs: Path, console: Console) -> None:
        self.logs = logs
        self._console = console
        self._count = 0

    def run(
        self,
        args: Sequence[str | Path],
        *,
        name: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run a program to its end.

        Args:
            args: The command; no shell is involved.
            name: A short name for its log file.
            cwd: The folder to run it in.
            env: Its whole environment; the present one if not given.
            check: Raise CommandError if it fails.
            on_line: Called with each line of output.

        Returns:
            Its exit status and output.

        Raises:
            CommandError: It failed and ``check`` is set; the message names the log.
            StorageError: It failed for want of disk space.
            MachineError: There is no such program.
        """
        words = tuple(str(arg) for arg in args)
        self._console.command(shlex.join(words))
        self.logs.mkdir(parents=True, exist_ok=True)
        self._count += 1
        log = self.logs / f"{self._count:02}-{name}.log"
        lines: list[str] = []
        with log.open("w", encoding="utf-8", buffering=1) as file:  # a line at a time: some run for hours
            file.write(f"$ {shlex.join(words)}\n")
            file.flush()
            try:
                process = subprocess.Popen(
                    words,
                    cwd=cwd,
                    env=dict(env) if env is not None else None,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
                if cwd is not None and not cwd.is_dir():
                    raise
                raise MachineError(
                    f"{words[0]} cannot be run",
                    expected=f"{words[0]} is installed",
                    found=str(error.strerror),
                    next_step=f"Install {Path(words[0]).name} and run the same command again.",
                ) from error
            with process:
                try:
                    assert process.stdout is not None
                    for line in process.stdout:
                        file.write(line)
                        lines.append(line)
                        if on_line is not None:
                            on_line(line.rstrip("\n"))
                except BaseException:
                    # An interrupted build must not leave its programs, or their children, running.
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    raise
        completed = Completed(words, process.returncode, "".join(lines), log)
        if completed.returncode != 0 and (full := full_disk(completed.output, Path(words[0]).name)) is not None:
            raise full
        if check and completed.returncode != 0:
            raise CommandError(
                f"{Path(words[0]).name} failed ({name})",
                expected="exit status 0",
                found=f"exit status {completed.returncode}; it ended with\n{completed.tail}",
                next_step=f"Read the whole log: {log}",
            )
        return completed
