"""Apply: put the topics' files and hunks into a wheel's members or an upstream checkout.

Only the members that a hunk changes are unpacked from the wheel. `git apply` applies the hunks, with no
fuzz, and its exit codes give the outcome; its messages, which change, are never parsed. Every topic of
a wheel is tried before anything is reported. Hunks on C++ and on the lists of C++ files are for
checkouts: a wheel has no such files, so they are skipped there.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from castoff.core.errors import ApplyError
from castoff.core.runner import Runner
from castoff.model.hunks import text_of
from castoff.model.topics import CPP_SUFFIXES, PYTHON_SUFFIXES, Topic

_HUNK_HEADER = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
_SHOWN_LINES = 12
_AROUND = 3

CHECKOUT_ONLY_SUFFIXES = (*CPP_SUFFIXES, ".bzl")
"""Upstream's files that only a checkout has: C++, and the lists of what is compiled."""


class Outcome(Enum):
    """The outcome of one file of a topic."""

    CLEAN = "clean"
    ALREADY_UPSTREAM = "already upstream"
    CONFLICT = "conflict"
    TARGET_MISSING = "target missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True)
class Trial:
    """The outcome of one file of a topic."""

    topic: str  # the topic's full name
    path: str  # the file, as the wheel has it
    outcome: Outcome  # the outcome
    detail: str  # for a person: what was expected and what is there; empty if clean


@dataclass(frozen=True)
class Applied:
    """A wheel's Python files with the topics."""

    changed: dict[str, bytes]  # the new contents of members that the wheel has
    added: dict[str, bytes]  # the contents of members that it does not have
    trials: tuple[Trial, ...]  # the outcome of each file


def apply_topics(topics: Sequence[Topic], pin: str, wheel: Path, tree: Path, runner: Runner) -> Applied:
    """Apply topics to a wheel.

    Args:
        topics: The topics of the wheel's project, in order.
        tree: An empty folder to work in.

    Returns:
        The members that change and those that are new.

    Raises:
        ApplyError: Some topic did not apply; the message has all of them.
    """
    trials: list[Trial] = []
    touched: set[str] = set()
    added: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        target = _Wheel(archive, tree)
        for topic in topics:
            new = _new_files(topic, topic.new_python(), target)
            added.update(trial.path for trial in new if trial.outcome is Outcome.CLEAN)
            hunks = _apply_hunks(topic, pin, target, runner)
            touched.update(trial.path for trial in hunks if trial.outcome is Outcome.CLEAN)
            trials += [*new, *hunks]
    failed = [trial for trial in trials if trial.outcome is not Outcome.CLEAN]
    if failed:
        raise _error(failed, pin, wheel.name)
    return Applied(
        changed={path: (tree / path).read_bytes() for path in sorted(touched - added)},
        added={path: (tree / path).read_bytes() for path in sorted(added)},
        trials=tuple(trials),
    )


def apply_to_checkout(topic: Topic, pin: str, tree: Path, runner: Runner) -> tuple[str, ...]:
    """Apply one topic to an upstream checkout, with everything in it except overlay/.

    Args:
        topic: The topic; those that it requires are already in the checkout.

    Returns:
        The files that it has changed or added.

    Raises:
        ApplyError: It does not apply.
    """
    target = _Checkout(tree)
    trials = [*_new_files(topic, topic.new_files(), target), *_apply_hunks(topic, pin, target, runner)]
    failed = [trial for trial in trials if trial.outcome is not Outcome.CLEAN]
    if failed:
        raise _error(failed, pin, f"the checkout of {topic.project}")
    return tuple(trial.path for trial in trials)


@dataclass(frozen=True)
class Fit:
    """How a topic fits an upstream tree or wheel that it was not made for."""

    topic: str  # its full name
    pin: str | None  # the pin whose hunks fit, or if none do the first that was tried; None if the topic has no hunks
    trials: tuple[Trial, ...]  # the outcome of each file
    skipped: tuple[str, ...]  # the files with hunks that a wheel does not have

    @property
    def failed(self) -> tuple[Trial, ...]:
        """The files that do not fit."""
        return tuple(trial for trial in self.trials if trial.outcome is not Outcome.CLEAN)


def try_topics(
    topics: Sequence[Topic], pins: Mapping[str, Sequence[str]], source: Path, tree: Path, runner: Runner
) -> tuple[Fit, ...]:
    """Try topics on an upstream tree or wheel, which is not changed.

    Args:
        topics: The topics of its project, in order. Each is tried on top of those before it that fit.
        pins: For each topic's full name, the pins whose hunks to try, best first.
        source: A wheel, or the folder of a checkout.
        tree: An empty folder to work in.

    Returns:
        How each of them fits.
    """
    with ExitStack() as stack:
        target: _Target
        whole = source.is_dir()
        target = _Copy(source, tree) if whole else _Wheel(stack.enter_context(zipfile.ZipFile(source)), tree)
        return tuple(_try_topic(topic, pins[topic.key], target, runner) for topic in topics)


def _try_topic(topic: Topic, pins: Sequence[str], target: _Target, runner: Runner) -> Fit:
    wanted = topic.new_python() if isinstance(target, _Wheel) else topic.new_files()
    new = _new_files(topic, wanted, target)
    fits = []
    for pin in pins:
        if not topic.hunks(pin):
            continue
        hunks = _Hunks(topic, topic.hunks(pin), target, runner)
        trials = hunks.apply()
        if trials or hunks.skipped:
            fits.append(Fit(topic.key, pin, (*new, *trials), hunks.skipped))
            if all(trial.outcome is Outcome.CLEAN for trial in trials):
                return fits[-1]
    return fits[0] if fits else Fit(topic.key, None, tuple(new), ())


class _Wheel:
    """The members of a wheel, each unpacked into a folder when it is first needed."""

    name = "the wheel"

    def __init__(self, archive: zipfile.ZipFile, tree: Path) -> None:
        self.tree = tree
        self._archive = archive
        self._members = set(archive.namelist())

    def has(self, path: str) -> bool:
        if path in self._members and not (self.tree / path).exists():
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / path).write_bytes(self._archive.read(path))
        return (self.tree / path).exists()

    def takes(self, path: str) -> bool:
        return not path.endswith(CHECKOUT_ONLY_SUFFIXES)


class _Checkout:
    """The files of a checkout."""

    name = "the checkout"

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def has(self, path: str) -> bool:
        return (self.tree / path).is_file()

    def takes(self, _path: str) -> bool:
        return True


class _Copy(_Checkout):
    """The files of a checkout that is not changed, each copied to a folder when it is first needed."""

    def __init__(self, source: Path, tree: Path) -> None:
        super().__init__(tree)
        self._source = source

    def has(self, path: str) -> bool:
        if not (self.tree / path).exists() and (self._source / path).is_file():
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._source / path, self.tree / path)
        return super().has(path)


_Target = _Wheel | _Checkout


def _new_files(topic: Topic, files: Mapping[str, Path], target: _Target) -> list[Trial]:
    trials: list[Trial] = []
    for path, source in files.items():
        if target.has(path):
            detail = f"files/ is for new files only, but {target.name} or an earlier topic already has this one"
            trials.append(Trial(topic.key, path, Outcome.CONFLICT, detail))
            continue
        (target.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (target.tree / path).write_bytes(source.read_bytes())
        trials.append(Trial(topic.key, path, Outcome.CLEAN, ""))
    return trials


def _apply_hunks(topic: Topic, pin: str, target: _Target, runner: Runner) -> list[Trial]:
    patches = topic.patches(pin)
    return _Hunks(topic, patches, target, runner).apply() if patches else []


class _Hunks:
    """The hunks of a topic's patches, tried on one wheel or checkout."""

    def __init__(self, topic: Topic, patches: Sequence[Path], target: _Target, runner: Runner) -> None:
        self._topic = topic
        self._patches = patches
        self._name = ", ".join(patch.name for patch in patches)
        self._target = target
        self._tree = target.tree
        self._runner = runner
        self.skipped: tuple[str, ...] = ()

    def apply(self) -> list[Trial]:
        """Try every file, and change the tree only if all of them are clean."""
        listing = self._git("--numstat", "-z")
        if listing is None:
            return [Trial(self._topic.key, self._name, Outcome.CORRUPT, "git cannot read this patch")]
        paths = list(dict.fromkeys(entry.split("\t", 2)[2] for entry in listing.split("\0") if entry.strip()))
        self.skipped = tuple(path for path in paths if not self._target.takes(path))
        trials = [self._try(path) for path in paths if path not in self.skipped]
        if any(trial.outcome is not Outcome.CLEAN for trial in trials):
            return trials
        if trials and self._git(*self._only([trial.path for trial in trials])) is None:
            return [self._trial(self._name, Outcome.CORRUPT, "each of its files applies alone, but not all together")]
        return [trial if (self._tree / trial.path).exists() else self._removed(trial.path) for trial in trials]

    def _removed(self, path: str) -> Trial:
        return self._trial(path, Outcome.CORRUPT, "hunks change files; they do not remove or rename them")

    def _try(self, path: str) -> Trial:
        if not path.endswith((*PYTHON_SUFFIXES, *CHECKOUT_ONLY_SUFFIXES)):
            detail = f"hunks are for {', '.join((*PYTHON_SUFFIXES, *CHECKOUT_ONLY_SUFFIXES))} files"
            return self._trial(path, Outcome.CORRUPT, detail)
        if not self._target.has(path):
            detail = f"{self._target.name} has no such file; new files go under files/"
            return self._trial(path, Outcome.TARGET_MISSING, detail)
        only = self._only([path])
        if self._git("--check", *only) is not None:
            return self._trial(path, Outcome.CLEAN, "")
        if self._git("--check", "--reverse", *only) is not None:
            return self._trial(path, Outcome.ALREADY_UPSTREAM, "the file already has the lines of the hunks")
        return self._trial(path, Outcome.CONFLICT, self._conflict(path))

    def _trial(self, path: str, outcome: Outcome, detail: str) -> Trial:
        return Trial(self._topic.key, path, outcome, detail)

    def _only(self, paths: Sequence[str]) -> list[str]:
        return [f"--include={path}" for path in paths]

    def _git(self, *options: str) -> str | None:
        """Run `git apply`; return what it wrote, or None if it failed."""
        completed = self._runner.run(
            ["git", "apply", "--whitespace=nowarn", *options, *self._patches],
            name=f"apply-{self._topic.name}",
            cwd=self._tree,
            env=git_environment(self._tree),
            check=False,
        )
        return completed.output if completed.returncode == 0 else None

    def _conflict(self, path: str) -> str:
        """Show the first hunk that does not match the file."""
        present = (self._tree / path).read_text(encoding="utf-8", errors="replace").splitlines()
        for start, expected in _old_sides(text_of(self._patches).decode(errors="replace"), path):
            if not _occurs(expected, present):
                at = _nearest(expected, present, start - 1)
                there = "and the file has none of these lines"
                if at is not None:
                    window = present[max(at - _AROUND, 0) : at + len(expected) + _AROUND]
                    there = f"and the nearest lines in the file, at line {at + 1}, are\n{_quote(window)}"
                return f"the hunk at line {start} expects\n{_quote(expected)}\n{there}"
        return "each hunk matches the file, but not in this order"


def git_environment(tree: Path) -> dict[str, str]:
    """Return the environment of git, without the user's settings and any repository around the tree."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment.update(
        GIT_CEILING_DIRECTORIES=str(tree.resolve().parent),
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
    )
    return environment


def _old_sides(patch: str, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield, for each hunk of a file, its line number and the lines it expects."""
    inside = False
    start = 0
    lines: list[str] | None = None
    for line in [*patch.splitlines(), "diff --git end"]:
        header = _HUNK_HEADER.match(line)
        if lines is not None and (header or line.startswith("diff --git ")):
            yield start, lines
            lines = None
        if line.startswith("diff --git "):
            inside = line.endswith(f" b/{path}")
        elif header and inside:
            start, lines = int(header.group(1)), []
        elif lines is not None and (not line or line[0] in " -"):
            lines.append(line[1:])


def _occurs(block: list[str], lines: list[str]) -> bool:
    return any(lines[at : at + len(block)] == block for at in range(len(lines) - len(block) + 1))


def _nearest(block: list[str], lines: list[str], expected_at: int) -> int | None:
    """Return where a file has the most lines of a block; of several such places, the nearest to the expected one."""
    wanted = Counter(line for line in block if line.strip())
    scores = [(Counter(lines[at : at + len(block)]) & wanted).total() for at in range(len(lines))]
    if not any(scores):
        return None
    most = max(scores)
    return min((at for at, score in enumerate(scores) if score == most), key=lambda at: abs(at - expected_at))


def _quote(lines: list[str]) -> str:
    shown = [f"    | {line}" for line in lines[:_SHOWN_LINES]]
    if len(lines) > _SHOWN_LINES:
        shown.append(f"    … and {len(lines) - _SHOWN_LINES} more")
    return "\n".join(shown)


def _error(failed: list[Trial], pin: str, where: str) -> ApplyError:
    reports = []
    for trial in failed:
        detail = trial.detail.replace("\n", "\n  ")
        reports.append(f"{trial.topic}: {trial.path}: {trial.outcome.value}\n  {detail}")
    first = failed[0]
    advice = {
        Outcome.ALREADY_UPSTREAM: f"Remove the hunk, or set {pin} to 'upstream' in topic.toml.",
        Outcome.CORRUPT: "Export the patch again with git diff.",
    }
    return ApplyError(
        f"{len({trial.topic for trial in failed})} topic(s) do not apply to {where}",
        expected="every file of every topic applies cleanly",
        found="\n".join(reports),
        next_step=advice.get(
            first.outcome, f"Adapt patches/{first.topic} to that file, then run the same command again."
        ),
    )
