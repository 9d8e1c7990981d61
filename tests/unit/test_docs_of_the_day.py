"""Which of the docs' programs a run has: those whose turn it is, and what is new."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [f"x = {n}\nprint(x)\n" for n in range(30)]


def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    monkeypatch.setenv("CASTOFF_DAY", "2026-11-24")
    spec = importlib.util.spec_from_file_location("docs_conftest", ROOT / "tests" / "docs" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_part_and_what_is_new(monkeypatch):
    docs = load(monkeypatch)
    before = "".join(PROGRAMS)
    today = docs.chosen(PROGRAMS, before)
    assert len(today) == 10
    changed = next(program for program in PROGRAMS if program not in today)
    assert docs.chosen(PROGRAMS, before.replace(changed.splitlines()[0], "y = 0")) == sorted(
        [*today, changed], key=PROGRAMS.index
    )
    assert docs.chosen(PROGRAMS, "") == PROGRAMS  # nothing is known of before
