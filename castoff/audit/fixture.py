"""The pytest fixture ``cast_audit``, a plugin of pytest in every environment with castoff."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from castoff.audit import audit
from castoff.audit.lock import check_lock, lock_text
from castoff.audit.report import COLUMNS, Report, summary
from castoff.core.text_table import text_table


@pytest.fixture
def cast_audit(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Audit a step, and fail the test if it has casts that are not allowed.

    ``cast_audit(fn, *args, max_casts=None, forbid=(), lock=None, calls=1, **kwargs)`` calls ``fn(*args, **kwargs)`` as
    ``castoff.audit.audit`` does and returns the report. The test fails with a table of the casts if there are more
    than ``max_casts`` between floating point dtypes, or one of a kind in ``forbid``: exact-widening,
    lossy-narrowing, exact-round-trip, lossy-round-trip, narrow-accumulation, leaves-device; or if they are not those
    of ``lock``, a lock file beside the file of the test. With CASTOFF_WRITE_LOCKS=1 in the environment that file is
    written.
    """

    def check(
        fn: Callable[..., object],
        *args: Any,
        max_casts: int | None = None,
        forbid: Sequence[str] = (),
        lock: str | Path | None = None,
        calls: int = 1,
        **kwargs: Any,
    ) -> Report:
        __tracebackhide__ = True
        report = audit(fn, *args, calls=calls, **kwargs)
        faults = report.faults(max_casts, forbid)
        if lock is not None:
            faults += _locked(request.path.parent / lock, report)
        if faults:
            table = text_table(COLUMNS, report.rows())
            pytest.fail("\n".join([*faults, "", table, "", summary(report)]), pytrace=False)
        return report

    return check


def _locked(path: Path, report: Report) -> list[str]:
    if os.environ.get("CASTOFF_WRITE_LOCKS") == "1":
        path.write_text(lock_text(report), encoding="utf-8")
    write = "CASTOFF_WRITE_LOCKS=1 in the environment writes it"
    if not path.exists():
        return [f"there is no {path}; {write}"]
    return [f"{fault}\n{write}" for fault in check_lock(path, report)]
