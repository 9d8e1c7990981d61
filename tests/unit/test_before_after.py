"""Which programs bench/before_after.py runs on stock wheels."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setenv("CASTOFF_DAY", "2026-11-24")
    import before_after

    monkeypatch.setattr(before_after.on_stock, "RECORD", tmp_path / "on_stock.json")
    return before_after


def test_what_is_known_is_not_run_on_stock_wheels(bench, monkeypatch):
    examples = bench.present_examples()
    paths = [ROOT / example.path for example in examples]
    assert bench.known_on_stock() == {}
    bench.on_stock.remember({path: example.stock for path, example in zip(paths, examples, strict=True)})
    known = bench.known_on_stock()
    assert known == {path: example.stock for path, example in zip(paths, examples, strict=True)}

    ran = []
    monkeypatch.setattr(bench, "run", lambda python, path: ran.append((python, path)) or f"of {python}")
    first, *_ = bench.run_all(paths, Path("stock"), Path("patched"), known)
    assert ran == [(Path("patched"), path) for path in paths]
    assert (first.stock, first.patched) == (examples[0].stock, "of patched")

    del known[paths[0]]
    first, *_ = bench.run_all(paths, Path("stock"), Path("patched"), known)
    assert (Path("stock"), paths[0]) in ran
    assert first.stock == "of stock"


def test_another_output_or_a_weekly_run_is_not_known(bench, monkeypatch):
    example = bench.present_examples()[0]
    program = ROOT / example.path
    bench.on_stock.remember({program: example.stock})
    assert bench.on_stock.is_known(program, example.stock)
    assert not bench.on_stock.is_known(program, example.stock + "x")
    monkeypatch.setenv("CASTOFF_DAY", "all")
    assert not bench.on_stock.is_known(program, example.stock)
