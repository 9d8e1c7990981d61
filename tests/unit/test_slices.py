"""The part of a large set that a run covers: it moves with the day, and leaves nothing out."""

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))
import slices

NAMES = [f"program {n}" for n in range(100)]


def on(monkeypatch, day, names=NAMES, parts=4):
    monkeypatch.setenv("CASTOFF_DAY", str(day))
    return slices.slice_of_day(names, parts)


def days(count, first="2026-11-24"):
    return [dt.date.fromisoformat(first) + dt.timedelta(n) for n in range(count)]


def test_as_many_days_as_parts_cover_everything_once(monkeypatch):
    found = [name for day in days(4) for name in on(monkeypatch, day)]
    assert sorted(found) == sorted(NAMES)


def test_a_day_has_its_part_in_the_order_of_the_names(monkeypatch):
    for day in days(3):
        found = on(monkeypatch, day, parts=3)
        assert len(found) in (33, 34)
        assert found == [name for name in NAMES if name in found]
        assert found not in (NAMES[:33], NAMES[::3], NAMES[1::3], NAMES[2::3])  # neighbours are alike: not together


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_no_day_is_without_a_check(monkeypatch, names):
    assert all(on(monkeypatch, day, names, parts=7) for day in days(7))
    assert on(monkeypatch, days(1)[0], []) == []


def test_all(monkeypatch):
    assert on(monkeypatch, "all") == NAMES


def test_the_day_is_that_of_the_commit(monkeypatch):
    monkeypatch.delenv("CASTOFF_DAY", raising=False)
    done = subprocess.run(
        ["git", "log", "-1", "--format=%cs"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert slices.day() == done.stdout.strip()


def test_as_a_program(monkeypatch):
    program = [sys.executable, slices.__file__]
    monkeypatch.setenv("CASTOFF_DAY", "2026-11-24")
    printed = [
        subprocess.run([*program, *names], capture_output=True, text=True, check=True).stdout.split()
        for names in ((), ("2.8", "2.7", "2.6"))
    ]
    assert printed[0] == ["2026-11-24"]
    assert printed[1] in (["2.8"], ["2.7"], ["2.6"])
