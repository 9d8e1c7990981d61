"""Every error that castoff raises on purpose.

Each class is one kind of error with its own exit code, and each instance says what was
expected, what was found and what to do next. They become output in one place, ``cli.boundary``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

INTERNAL_EXIT_CODE = 70
"""The exit code of a bug in castoff itself (BSD's EX_SOFTWARE); only then is a traceback shown."""

INTERRUPTED_EXIT_CODE = 130
"""The exit code after Ctrl-C, as shells have it."""


class CastoffError(Exception):
    """An error that the user can understand and correct.

    Args:
        next_step: What to do, as a command if there is one.
    """

    exit_code: ClassVar[int]
    kind: ClassVar[str]

    def __init__(self, summary: str, *, expected: str, found: str, next_step: str) -> None:
        super().__init__(summary)
        self.summary = summary
        self.expected = expected
        self.found = found
        self.next_step = next_step

    def as_dict(self) -> dict[str, object]:
        """Return the error as plain data, for ``--json``."""
        return {
            "kind": self.kind,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "expected": self.expected,
            "found": self.found,
            "next_step": self.next_step,
        }


class PinError(CastoffError):
    """A pins file is missing or malformed, or does not have what was asked for."""

    exit_code = 10
    kind = "pin"


class FetchError(CastoffError):
    """A wheel with one of the pinned hashes cannot be downloaded."""

    exit_code = 11
    kind = "fetch"


class TopicError(CastoffError):
    """A topic's folder or ``topic.toml`` is wrong."""

    exit_code = 12
    kind = "topic"


class ApplyError(CastoffError):
    """A topic does not apply to the wheel."""

    exit_code = 13
    kind = "apply"


class CompileError(CastoffError):
    """An overlay does not compile, or does not have the symbols that its topics declare.

    Args:
        summary: As of every error.
        expected: As of every error.
        found: As of every error.
        next_step: As of every error.
        sources: The sources that do not compile, as "project/topic/file", each with its first error.
        symbols: The symbols that the topics declare and the overlay does not have.
    """

    exit_code = 14
    kind = "compile"

    def __init__(
        self,
        summary: str,
        *,
        expected: str,
        found: str,
        next_step: str,
        sources: Mapping[str, str] | None = None,
        symbols: Sequence[str] = (),
    ) -> None:
        super().__init__(summary, expected=expected, found=found, next_step=next_step)
        self.sources = dict(sources or {})
        self.symbols = tuple(symbols)


class RepackError(CastoffError):
    """A wheel cannot be unpacked or packed again."""

    exit_code = 15
    kind = "repack"


class VerifyError(CastoffError):
    """A finished wheel fails a check."""

    exit_code = 16
    kind = "verify"


class DistError(CastoffError):
    """The output folder cannot be put in place."""

    exit_code = 17
    kind = "dist"


class ChangelogError(CastoffError):
    """CHANGELOG.md names no release."""

    exit_code = 18
    kind = "changelog"


class MachineError(CastoffError):
    """This machine lacks something that the build needs: a tool, a Python."""

    exit_code = 19
    kind = "machine"


class CommandError(CastoffError):
    """A program that castoff ran failed."""

    exit_code = 20
    kind = "command"


class StorageError(CastoffError):
    """A disk is full, read-only or not accessible."""

    exit_code = 21
    kind = "storage"


class TpuError(CastoffError):
    """A program cannot be traced, or not be compiled for a TPU."""

    exit_code = 22
    kind = "tpu"


class CheckoutError(CastoffError):
    """A checkout cannot be made there, or is not one that castoff made."""

    exit_code = 24
    kind = "checkout"


class UpstreamTestsError(CastoffError):
    """Upstream's own tests have other outcomes on the patched wheels than on the stock ones."""

    exit_code = 26
    kind = "upstream-tests"


class ContainerError(CastoffError):
    """A container engine failed, or there is none."""

    exit_code = 30
    kind = "container"


class StageError(CastoffError):
    """A topic cannot become a pull request: a test fails, or castoff's name is left in it."""

    exit_code = 28
    kind = "stage"


class InstallError(CastoffError):
    """An environment cannot be patched in place, or not be made stock again."""

    exit_code = 31
    kind = "install"


class ReleaseError(CastoffError):
    """A release cannot be made of this tree."""

    exit_code = 32
    kind = "release"


class AuditError(CastoffError):
    """A step cannot be audited."""

    exit_code = 29
    kind = "audit"


_STORAGE_NEXT_STEPS = {
    errno.ENOSPC: "Free some space (a build needs about 6 GB), or move the cache with CASTOFF_CACHE or the output with --out.",
    errno.EDQUOT: "Raise the quota, or move the cache with CASTOFF_CACHE or the output with --out.",
    errno.EFBIG: "Raise the file size limit (`ulimit -f`): torch's wheel alone is about 900 MB.",
    errno.EROFS: "Point CASTOFF_CACHE or --out at a writable place.",
    errno.EACCES: "Make it readable and writable for you, or point CASTOFF_CACHE or --out elsewhere.",
    errno.EPERM: "Make it readable and writable for you, or point CASTOFF_CACHE or --out elsewhere.",
    errno.ENOTDIR: "Correct the path: a part of it is a file, where a folder is needed.",
    errno.EEXIST: "Correct the path: a part of it is a file, where a folder is needed.",
    errno.EISDIR: "Correct the path: it is a folder, where a file is needed.",
    errno.ENAMETOOLONG: "Give a shorter path.",
    errno.ELOOP: "Correct the symbolic links on the path: they lead in a circle.",
}


def full_disk(output: str, program: str) -> StorageError | None:
    """Return the StorageError that a failed program's output amounts to.

    Returns:
        The error to show, or None where it says nothing of a full disk.
    """
    for number in (errno.ENOSPC, errno.EDQUOT):
        # As C, Rust and Python programs put it; the first in the user's language.
        words = (os.strerror(number), f"(os error {number})", f"[Errno {number}]")
        said = next((line.strip() for line in output.splitlines() if any(word in line for word in words)), None)
        if said is not None:
            return StorageError(
                f"{os.strerror(number)}, says {program}",
                expected=f"{program} can write its files, also in TMPDIR",
                found=said,
                next_step=_STORAGE_NEXT_STEPS[number],
            )
    return None


def storage_error(error: OSError) -> StorageError | None:
    """Return the StorageError for an operating system error.

    Args:
        error: The error of the operating system.

    Returns:
        The error to show, or None if the cause is not the disk.
    """
    next_step = _STORAGE_NEXT_STEPS.get(error.errno or 0)
    if next_step is None:
        return None
    where = error.filename2 or error.filename or "a file of the build"
    return StorageError(
        f"{error.strerror}: {where}",
        expected=f"{where} is writable",
        found=str(error.strerror),
        next_step=next_step,
    )
