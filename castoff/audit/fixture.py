"""The pytest fixture ``cast_audit``, a plugin of pytest in every environment with castoff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from castoff.audit import audit
from castoff.audit.report import COLUMNS, Report, summary
from castoff.core.text_table import text_table


@pytest.fixture
def cast_audit() -> Callable[..., Report]:
    """Audit a step, and fail the test if it has casts that are not allowed.

    ``cast_audit(fn, *args, max_casts=None, forbid=(), calls=1, **kwargs)`` calls ``fn(*args, **kwargs)`` as
    ``castoff.audit.audit`` does and returns the report. The test fails with a table of the casts if there are more
    than ``max_casts`` between floating point dtypes, or one of a kind in ``forbid``: exact-widening,
    lossy-narrowing, exact-round-trip, lossy-round-trip.
    """

    def check(
        fn: Callable[..., object],
        *args: Any,
        max_casts: int | None = None,
        forbid: Sequence[str] = (),
        calls: int = 1,
        **kwargs: Any,
    ) -> Report:
        __tracebackhide__ = True
        report = audit(fn, *args, calls=calls, **kwargs)
        faults = report.faults(max_casts, forbid)
        if faults:
            table = text_table(COLUMNS, report.rows())
            pytest.fail("\n".join([*faults, "", table, "", summary(report)]), pytrace=False)
        return report

    return check
