"""The corpus of programs for TPUs: what counts as a miss, and that the docs say what was measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.delitem(sys.modules, "tpu_corpus", raising=False)
    import tpu_corpus

    return tpu_corpus


@pytest.fixture
def record(bench):
    return json.loads(bench.MEASURED.read_text(encoding="utf-8"))


def test_there_are_forty_programs_and_what_is_recorded_is_of_them(bench, record):
    programs = bench.known_programs()
    assert len(set(programs)) == len(programs) >= 40
    assert set(record) <= set(programs)


def test_no_recorded_program_takes_more_than_stock(bench, record):
    assert bench.misses(record) == {}


def test_what_is_known_to_take_more_does_and_might_not_take_much_more(bench, record):
    assert set(bench.misses(record, {})) == set(bench.KNOWN)
    for (name, generation, unit), known in bench.KNOWN.items():
        row = record[name][generation]
        least = bench.SMALL if unit == bench.MEMORY else 1
        assert known.most - row["castoff"][unit] / max(row["stock"][unit], least) < 0.01


def test_what_is_known_to_take_more_is_a_miss_if_it_grows(bench):
    row = {"stock": {"cycles": 1000, "temporary bytes": 10_000_000}}
    row["castoff"] = row["stock"] | {"temporary bytes": 15_000_000}
    place = ("p", "v5e", bench.MEMORY)
    assert bench.misses({"p": {"v5e": row}}, {place: bench.Known(1.5, "a reason")}) == {}
    assert set(bench.misses({"p": {"v5e": row}}, {place: bench.Known(1.49, "a reason")})) == {place}


def test_the_docs_say_what_was_measured(bench, record):
    assert bench.table(record) in bench.DOCUMENT.read_text(encoding="utf-8")
    assert bench.sentence(record) in bench.README.read_text(encoding="utf-8")


def test_a_miss_is_a_hundredth_of_the_cycles_or_a_megabyte(bench):
    stock = {"cycles": 1000, "temporary bytes": 10_000_000}

    def misses(**more):
        named = {name.replace("_", " "): value for name, value in more.items()}
        return bench.misses({"p": {"v5e": {"stock": stock, "castoff": stock | named}}})

    assert misses() == misses(cycles=1010, temporary_bytes=11_000_000) == {}
    assert misses(cycles=1011) and misses(temporary_bytes=11_200_000)


def test_a_miss_of_memory_hides_none_of_cycles(bench):
    stock = {"cycles": 1000, "temporary bytes": 0}
    more = {"cycles": 1100, "temporary bytes": 2_000_000}
    found = bench.misses({"p": {"v5e": {"stock": stock, "castoff": more}}})
    assert set(found) == {("p", "v5e", unit) for unit in bench.UNITS}


def test_a_record_keeps_the_columns_that_were_not_measured_again(bench):
    def rows(**cycles):
        return {"LoRA": {"v5e": {name: {"cycles": number} for name, number in cycles.items()}}}

    assert bench.together(rows(castoff=2), rows(stock=3, castoff=1, JAX=4)) == rows(stock=3, castoff=2, JAX=4)


def test_medians_beside_jax_are_of_the_programs_that_have_it(bench):
    figures = {name: {"cycles": cycles, "temporary bytes": 0} for name, cycles in (("stock", 4), ("castoff", 2))}
    record = {"a": {"v5e": figures}, "b": {"v5e": figures | {"JAX": {"cycles": 8, "temporary bytes": 0}}}}
    assert "0.50 of stock's cycles in the median of 2 programs" in bench.summary(record)
    assert "and 0.25 of those of 1 in JAX by torchax" in bench.summary(record)
    assert bench.measured_columns(record, "v5e") == ["stock", "castoff", "JAX"]
