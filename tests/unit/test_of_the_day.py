"""Which tests of a long suite a run has: those whose day it is, and those of what has changed."""

from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [f"x = {n}\nprint(x)\n" for n in range(35)]


@pytest.fixture
def of_the_day(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    monkeypatch.setenv("CASTOFF_DAY", "2026-11-24")
    import of_the_day

    monkeypatch.setattr(of_the_day, "changed_lately", list)
    monkeypatch.setattr(of_the_day, "docs_of_before", lambda: "".join(PROGRAMS))
    return of_the_day


def cases_of(module, count=35):
    path = ROOT / "tests" / module
    return [SimpleNamespace(nodeid=f"tests/{module}::test_a[{n}]", path=path) for n in range(count)]


def programs():
    items = cases_of("docs/test_snippets.py")
    for item, program in zip(items, PROGRAMS, strict=True):
        item.callspec = SimpleNamespace(params={"program": program})
    return items


def test_a_seventh(of_the_day, monkeypatch):
    items = cases_of("ir/test_values.py")
    assert len(of_the_day.chosen(items)) == 5
    assert of_the_day.chosen(items) == of_the_day.seventh(items)
    monkeypatch.setenv("CASTOFF_DAY", "all")
    assert of_the_day.chosen(items) == items


def test_sevenths_are_whatever_has_changed(of_the_day, monkeypatch):
    items = cases_of("ir/test_values.py")
    monkeypatch.setattr(of_the_day, "changed_lately", lambda: ["tests/ir/test_values.py"])
    seventh, others = of_the_day.seventh(items), of_the_day.others(items)
    assert (len(seventh), len(others)) == (5, 30)
    assert sorted(id(item) for item in seventh + others) == sorted(map(id, items))


@pytest.mark.parametrize(
    ("file", "runs"),
    [
        ("tests/ir/test_values.py", 35),
        ("tests/ir/ir_text.py", 35),
        ("castoff/formats/xla_text.py", 35),
        ("patches/torch_xla/values/files/torch_xla/csrc/castoff/values.cpp", 35),
        ("patches/torch_xla/values/topic.toml", 5),
        ("patches/torch_xla/native-mul/hunks/2.9.patch", 5),
        ("patches/torch_xla/a-topic-that-has-gone/files/gone.cpp", 5),
        ("tests/conftest.py", 5),
        ("README.md", 5),
    ],
)
def test_what_has_changed(of_the_day, monkeypatch, file, runs):
    monkeypatch.setattr(of_the_day, "changed_lately", lambda: [file])
    assert len(of_the_day.chosen(cases_of("ir/test_values.py"))) == runs


def test_programs_of_the_docs_that_are_new(of_the_day, monkeypatch):
    items = programs()
    today = of_the_day.chosen(items)
    assert len(today) == 5
    other = next(item for item in items if item not in today)
    before = "".join(PROGRAMS).replace(other.callspec.params["program"].splitlines()[0], "y = 0")
    monkeypatch.setattr(of_the_day, "docs_of_before", lambda: before)
    assert of_the_day.chosen(items) == [item for item in items if item in today or item is other]
    monkeypatch.setattr(of_the_day, "docs_of_before", lambda: "")  # nothing is known of before
    assert of_the_day.chosen(items) == items
