"""The sweep of operators: which samples it runs, and what it says of a record that is not true any more."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    for folder in ("bench", "tests/operators"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import operator_sweep

    return operator_sweep


def row(kind="same", ratio=0.0, number=0, phase="forward"):
    return {"op": "sum", "dtype": "f32", "number": number, "phase": phase, "kind": kind, "detail": "", "ratio": ratio}


CHOSEN = {"op": "sum", "dtype": "f32", "chosen": [0, 3]}


def record(kind, number=0, reason="other"):
    line = {"operator": "sum", "phase": "forward", "kind": kind, "reason": reason, "samples": {"f32": [number]}}
    return {"differs": [line]}


NOTHING = {"differs": []}


@pytest.mark.parametrize(
    ("recorded", "found", "problem"),
    [
        (NOTHING, row(), None),
        (NOTHING, row("dtype", 1e9), "is not recorded"),
        (NOTHING, row("value", 2.5), "is not recorded"),
        (NOTHING, row("value", 1.9), None),
        (NOTHING, row("raises"), "is not recorded"),
        (record("value"), row("value", 1.2), None),
        (record("value"), row("same", 0.8), None),
        (record("value"), row("same", 0.2), "is right"),
        (record("value", reason="below normal"), row(), None),  # the processor decides
        (record("raises"), row(), "is right"),
        (record("raises"), row("raises late"), "recorded is: raises"),
        (record("value"), row("dtype", 1e9), "recorded is: value"),
        (record("value", number=1), row(), None),  # not among those that were run
    ],
)
def test_what_is_not_as_recorded_is_a_problem(bench, recorded, found, problem):
    problems = bench.unlike(recorded, [CHOSEN, found])
    assert (not problems) if problem is None else (len(problems) == 1 and problem in problems[0])


def test_a_record_is_what_was_found(bench):
    rows = [CHOSEN, row("dtype", 1e9), row("value", 3.0, phase="gradient"), row(number=3)]
    made = json.loads(bench.text_of(bench.record_of("quick", [*rows, row("raises", number=3)], rows)))
    assert not bench.unlike(made, rows)
    assert (made["operators"], made["calls"]) == (1, 2)
    assert "| silently different calls | 1 | 1 |" in bench.page(made)
    assert "| raising calls | 1 | 0 |" in bench.page(made)
    assert "| 1 operators, 2 calls | stock | castoff |" in bench.page(made)
    assert len(bench.unlike(made, [CHOSEN, row(), row(number=3)])) == 2


def test_the_page_has_what_is_right_now(bench):
    stock = [CHOSEN, row("dtype", 1e9), row("raises", number=3)]
    assert not bench.mended(bench.record_of("quick", stock, stock))
    page = bench.page(bench.record_of("quick", stock, [CHOSEN, row(), row(number=3)]))
    assert "Silently different on stock: 1 operators" in page
    assert "| wrong dtype | right | f32 | `sum` |" in page
    assert "| raises at the call | right | f32 | `sum` |" in page


def test_what_ci_runs_is_part_of_the_whole(bench):
    plan = sys.modules["plan"]
    pairs = [(op, dtype) for op in ("sum", "trace", "sort") for dtype in plan.DTYPES]
    quick = plan.quick(pairs)
    assert set(quick) < set(pairs) and quick == plan.quick(pairs)
    assert all(len([dtype for op, dtype in quick if op == name]) == 4 for name in ("sum", "trace", "sort"))
    for available in range(50):
        some, most = plan.chosen(available, plan.QUICK), plan.chosen(available, plan.ALL)
        assert set(some) <= set(most) <= set(range(available))
        assert len(some) == min(available, plan.QUICK) and len(most) == min(available, plan.ALL)
