import errno

import pytest

from castoff.core import errors
from castoff.core.errors import CastoffError, storage_error


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


def test_other_trouble_is_not_about_storage() -> None:
    assert storage_error(OSError(errno.EINTR, "interrupted")) is None
