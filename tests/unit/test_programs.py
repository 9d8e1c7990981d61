"""The record of programs: it has each as it is now, the page says what it says, and nothing is worse than on stock."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    for folder in ("bench", "tests/programs"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import programs

    return programs


def test_the_record_has_every_program_as_it_is(bench):
    lines = bench.record.read()
    assert {name: line.digest for name, line in lines.items()} == {
        name: bench.record.digest(name) for name in bench.record.names()
    }


def test_nothing_is_worse_than_on_stock_wheels(bench):
    assert [name for name, line in bench.record.read().items() if line.worse] == []


def test_the_page_says_what_is_recorded(bench):
    assert bench.page(bench.record.read()) in bench.DOCUMENT.read_text(encoding="utf-8")


def test_every_program_says_what_it_does(bench):
    assert [name for name in bench.record.names() if len(bench.title(name)) < 20] == []


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("wrong value", None),
        ("right", "recorded is: wrong value"),
        ("dies", "worse than on stock wheels: wrong value"),
    ],
)
def test_what_is_not_as_recorded_is_named(bench, kind, problem):
    name = bench.record.names()[0]
    known = bench.Recorded(bench.record.digest(name), "wrong value", "wrong value")
    found = bench.record.problems([{"name": name, "kind": kind, "detail": "off"}], {name: known})
    assert found == [] if problem is None else problem in found[0]


def test_a_program_that_has_changed_is_named(bench):
    name = bench.record.names()[0]
    found = bench.record.problems(
        [{"name": name, "kind": "right", "detail": ""}], {name: bench.Recorded("another", "right", "right")}
    )
    assert "run bench/programs.py --write" in found[0]


def test_a_hash_is_that_of_the_code_alone(bench, monkeypatch):
    digests = []
    for constant, text in (
        (1, '"""One."""\n    return X'),
        (1, '"""Two."""\n\n    return X  # a comment'),
        (2, '"""One."""\n    return X'),
    ):
        module = ast.parse(f"X = {constant}\n\n\ndef program(device):\n    {text}\n")
        monkeypatch.setattr(bench.record, "modules", lambda module=module: {"subject": module})
        digests.append(bench.record.digest("subject/program"))
    assert digests[0] == digests[1] != digests[2]
