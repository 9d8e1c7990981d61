"""The preflight: whether this machine can build from source, and how long it will take, said beforehand."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from castoff.core.errors import MachineError, PreflightError
from castoff.core.runner import Runner
from castoff.model.pin import PROJECTS, Pin

DISK_GB = 80
MEMORY_GB = 16
JOB_GB = (2, 4)
"""How much memory a compiler is given: torch's large units need 2 GB, LLVM's and XLA's more."""

_GB = 10**9
_REACH_SECONDS = "30"
_FETCHED_BY_BAZEL = "https://github.com/openxla/xla"


@dataclass(frozen=True)
class Machine:
    """What a machine has.

    Attributes:
        cores: How many cores this process may use.
        memory_gb: The memory, in 10⁹ bytes.
        disk_gb: What is free where the build works, likewise.
        gcc: The version of g++, or None.
        programs: The programs that were looked for and found, and where.
        headers: Whether the CPython has its headers.
        unreachable: The repositories that git does not reach, each with the reason.
    """

    cores: int
    memory_gb: float
    disk_gb: float
    gcc: str | None
    programs: dict[str, Path]
    headers: bool
    unreachable: dict[str, str]

    def jobs(self) -> tuple[int, int]:
        """Return how many compilers it can run at once: for torch, and for torch_xla."""
        torch, xla = (max(1, min(self.cores, int(self.memory_gb // gb))) for gb in JOB_GB)
        return torch, xla

    @property
    def launcher(self) -> Path | None:
        """The compiler cache."""
        return self.programs.get("ccache") or self.programs.get("sccache")


@dataclass(frozen=True)
class Finding:
    """Something that a source build needs, and how this machine stands to it.

    Attributes:
        what: What is needed.
        needed: How much or which.
        found: What there is.
        state: "ok", "missing", or "note" where the build can do without.
        remedy: What to do about it; empty if all is well.
    """

    what: str
    needed: str
    found: str
    state: str
    remedy: str = ""


def look(pin: Pin, interpreter: Path, work: Path, runner: Runner) -> Machine:
    """Look at this machine.

    Args:
        pin: The pin, whose repositories are tried.
        interpreter: The CPython that the wheels are for.
        work: Where the build is to work.
        runner: Runs git, g++ and the CPython.
    """
    found = {name: shutil.which(name) for name in ("git", "g++", "patch", "bazel", "ccache", "sccache")}
    programs = {name: Path(path) for name, path in found.items() if path is not None}
    there = next(folder for folder in (work, *work.parents) if folder.is_dir())
    header = "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').is_file())"
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GB,
        disk_gb=shutil.disk_usage(there).free / _GB,
        gcc=_gcc(programs, runner),
        programs=programs,
        headers=runner.run([interpreter, "-I", "-c", header], name="headers").output.strip() == "True",
        unreachable=_unreachable([*(pin.upstream(name).repository for name in PROJECTS), _FETCHED_BY_BAZEL], runner),
    )


def _gcc(programs: dict[str, Path], runner: Runner) -> str | None:
    if "g++" not in programs:
        return None
    answer = runner.run([programs["g++"], "-dumpfullversion"], name="gcc", check=False).output.strip()
    return answer if re.fullmatch(r"\d+(\.\d+)*", answer) else None


def _unreachable(repositories: Sequence[str], runner: Runner) -> dict[str, str]:
    failed = {}
    for repository in repositories:
        command = ["timeout", _REACH_SECONDS, "git", "ls-remote", "--quiet", repository, "HEAD"]
        try:
            done = runner.run(command, name="reach", env={**os.environ, "GIT_TERMINAL_PROMPT": "0"}, check=False)
        except MachineError as error:
            failed[repository] = error.found
            continue
        if done.returncode != 0:
            failed[repository] = done.tail.splitlines()[-1]
    return failed


def examine(machine: Machine, pin: Pin) -> tuple[Finding, ...]:
    """Compare a machine with what a source build needs.

    Args:
        machine: The machine.
        pin: The pin.

    Returns:
        All that is needed, what is missing included.
    """
    programs = machine.programs
    bazel = "Install bazelisk under the name bazel: it runs the Bazel that torch_xla's .bazelversion names."
    packages = "apt-get install build-essential git patch (Debian and Ubuntu)"
    rows = [
        _amount("disk", DISK_GB, machine.disk_gb, "Free some, or name another folder with --work."),
        _amount("memory", MEMORY_GB, machine.memory_gb, "Use a larger machine: the linker alone needs much of it."),
        _compiler(machine, pin),
        _program("git", programs, packages),
        _program("patch", programs, packages),
        _program("bazel", programs, bazel),
        _found("Python.h", "the headers of the CPython", machine.headers, "Install them: apt-get install python3-dev."),
        *_network(machine),
        _cache(machine),
    ]
    return tuple(rows)


def _found(what: str, needed: str, there: bool, remedy: str) -> Finding:
    return Finding(what, needed, "there" if there else "none", *(("ok",) if there else ("missing", remedy)))


def _program(name: str, programs: dict[str, Path], remedy: str) -> Finding:
    path = programs.get(name)
    return Finding(name, "on PATH", str(path or "none"), *(("missing", remedy) if path is None else ("ok",)))


def _amount(what: str, needed: int, there: float, remedy: str) -> Finding:
    state = ("missing", remedy) if there < needed else ("ok",)
    return Finding(what, f"{needed} GB", f"{there:.0f} GB", *state)


def _compiler(machine: Machine, pin: Pin) -> Finding:
    oldest, newest = pin.for_source().gcc
    needed = f"g++ {oldest} or later; upstream's own build: up to {newest}"
    if machine.gcc is None or _numbers(machine.gcc) < _numbers(oldest):
        remedy = f"apt-get install g++-{newest} (Debian and Ubuntu), and make it g++ on PATH."
        return Finding("compiler", needed, f"g++ {machine.gcc}" if machine.gcc else "none", "missing", remedy)
    if _numbers(machine.gcc)[0] > int(newest):
        return Finding(
            "compiler", needed, f"g++ {machine.gcc}", "note", "Newer than what upstream built with: it may fail."
        )
    return Finding("compiler", needed, f"g++ {machine.gcc}", "ok")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _network(machine: Machine) -> list[Finding]:
    if not machine.unreachable:
        return [Finding("network", "git reaches upstream's repositories", "it does", "ok")]
    remedy = "Use a network that reaches it, or tell git of a mirror: git config --global url.MIRROR.insteadOf ADDRESS"
    return [
        Finding("network", f"git reaches {repository}", reason, "missing", remedy)
        for repository, reason in machine.unreachable.items()
    ]


def _cache(machine: Machine) -> Finding:
    needed = "ccache or sccache, not required"
    if machine.launcher is None:
        return Finding("cache", needed, "none", "note", "Install ccache: a second build of torch then takes minutes.")
    return Finding("cache", needed, str(machine.launcher), "ok")


def check(findings: Sequence[Finding]) -> None:
    """Check that nothing is missing.

    Raises:
        PreflightError: Something is; the message has all of it.
    """
    missing = [finding for finding in findings if finding.state == "missing"]
    if missing:
        raise PreflightError(
            "this machine cannot build from source",
            expected="\n".join(f"{finding.what}: {finding.needed}" for finding in missing),
            found="\n".join(f"{finding.what}: {finding.found}" for finding in missing),
            next_step="\n".join(dict.fromkeys(finding.remedy for finding in missing)),
        )


def report(findings: Sequence[Finding]) -> str:
    """Return the findings as a table."""
    rows = [f"{one.state:<8} {one.what}: {one.found} (needed: {one.needed})" for one in findings]
    return "\n".join(rows)
