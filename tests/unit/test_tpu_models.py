"""The costs of layers on TPUs: what is counted, and that the docs and README say what was measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """module @step {
  func.func public @main(%arg0: tensor<4xbf16>) -> (tensor<4xf32>) {
    %0 = call @wide(%arg0) : (tensor<4xbf16>) -> tensor<4xf32>
    %1 = call @wide(%arg0) : (tensor<4xbf16>) -> tensor<4xf32>
    %2 = stablehlo.convert %arg0 : (tensor<4xbf16>) -> tensor<4xi1>
    return %1 : tensor<4xf32>
  }
  func.func private @wide(%arg0: tensor<4xbf16>) -> tensor<4xf32> {
    %0 = stablehlo.convert %arg0 : (tensor<4xbf16>) -> tensor<4xf32>
    %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xbf16>
    %2 = stablehlo.convert %1 : (tensor<4xbf16>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}
"""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.delitem(sys.modules, "tpu_models", raising=False)
    import tpu_models

    return tpu_models


@pytest.fixture
def record(bench):
    return json.loads(bench.MEASURED.read_text(encoding="utf-8"))


def test_casts_in_a_function_count_for_each_call_and_those_of_bools_do_not(bench):
    assert bench.casts(PROGRAM) == 6


def test_what_is_recorded_is_complete(bench, record):
    assert set(record) <= set(bench.LAYERS)
    assert len(record["pre-norm"]) > 1
    for rows in record.values():
        assert set(rows) <= set(bench.TOPOLOGIES)
        for row in rows.values():
            assert [column for column in row if column != bench.KERNEL] == list(bench.COLUMNS)


def test_the_docs_and_the_readme_say_what_was_measured(bench, record):
    assert bench.table(record) in bench.DOCUMENT.read_text(encoding="utf-8")
    assert bench.sentence(record) in bench.README.read_text(encoding="utf-8")


def test_a_figure_or_a_program_that_is_not_the_recorded_one_is_named(bench, record):
    layer, generation, column = bench.CHECKED
    figures = record[layer][generation][column]
    measured = {layer: {generation: {column: dict(figures)}}}
    assert bench.other_figures(measured, record) == []
    measured[layer][generation][column]["casts"] += 1
    (problem,) = bench.other_figures(measured, record)
    assert problem.startswith(f"{layer}, {generation}, {column}, casts: measured")
    problems = bench.other_programs({(column, layer): PROGRAM}, record)
    assert len(problems) == len(record[layer])
    assert problems[0].startswith(f"{layer}, ")


def test_a_part_that_is_measured_again_keeps_the_rest_in_order(bench):
    old = {"T5": {"v6e": {"stock": {"cycles": 1}}}, "BERT": {"v6e": {"stock": {"cycles": 2}}}}
    new = {"T5": {"v5e": {"stock": {"cycles": 3}}, "v6e": {"stock": {"cycles": 4}}}}
    merged = bench.merged(new, old)
    assert list(merged) == ["BERT", "T5"]
    assert list(merged["T5"]) == ["v5e", "v6e"]
    assert merged["T5"]["v6e"]["stock"]["cycles"] == 4
