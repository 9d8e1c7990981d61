import errno

import pytest

from castoff.core import errors
from castoff.core.errors import CastoffError, StorageError, storage_error
from castoff.core.runner import Runner


def _classes() -> list[type[CastoffError]]:
    return [value for value in vars(errors).values() if isinstance(value, type) and CastoffError in value.__bases__]


def test_every_error_has_its_own_exit_code_and_kind() -> None:
    codes = [kind.exit_code for kind in _classes()]
    assert len(codes) >= 12
    assert len(set(codes)) == len(codes)
    assert len({kind.kind for kind in _classes()}) == len(codes)
    # 0 is success, 1 and 2 are Python's and typer's own.
    assert {0, 1, 2, errors.INTERNAL_EXIT_CODE, errors.INTERRUPTED_EXIT_CODE}.isdisjoint(codes)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EFBIG])
def test_disk_trouble_becomes_a_storage_error_that_names_the_file(number: int) -> None:
    error = storage_error(OSError(number, "trouble", "/some/file"))
    assert error is not None
    assert "/some/file" in error.summary
    assert error.next_step


@pytest.mark.parametrize(
    "line",
    [
        "  Caused by: failed to copy file from a to b: No space left on device (os error 28)",
        "ERROR: Could not install packages due to an OSError: [Errno 28] Kein Speicherplatz mehr verfügbar",
        "x.cpp:1: fatal error: error writing to /tmp/ccX.s: No space left on device",
        "a: Disk quota exceeded",
    ],
)
def test_a_program_that_fails_for_a_full_disk_is_a_storage_error(runner: Runner, line: str) -> None:
    for check in (True, False):
        with pytest.raises(StorageError) as caught:
            runner.run(["sh", "-c", f"echo '{line}'; exit 3"], name="x", check=check)
        assert caught.value.found == line.strip()
    assert runner.run(["echo", line], name="x").returncode == 0


def test_other_trouble_is_not_about_storage() -> None:
    assert storage_error(OSError(errno.EINTR, "interrupted")) is None
