"""The means, bands and orders that docs/training-measured.md states, and that it states what was measured."""

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import training  # noqa: E402 - found by the line above
from shared import training_record as made  # noqa: E402

PAGE = ROOT / "docs" / "training-measured.md"
RECORD = made.read()


def test_a_band_is_students_of_eight_values() -> None:
    mean, around = made.band([1, 2, 3, 4, 5, 6, 7, 8])
    assert mean == 4.5
    assert around == pytest.approx(2.365 * 6**0.5 / 8**0.5)
    with pytest.raises(ValueError, match="expected the values of 4 to 8 seeds, found 3"):
        made.band([1, 2, 3])


def test_differences_are_of_the_same_seed() -> None:
    losses = {str(seed): [seed, 2.0 * seed] for seed in made.SEEDS}
    more = {seed: [value + 0.25 for value in values] for seed, values in losses.items()}
    record = {"losses": {"float32": losses, "wide": more}}
    assert made.difference_bands(record, "wide") == [(0.25, 0.0), (0.25, 0.0)]
    assert made.loss_bands(record, "wide")[0][1] > 1


def an_order(**changed: dict[str, float]) -> dict[str, Any]:
    errors: dict[str, dict[str, float]] = {
        "network": {"float32": 1e-7, "wide": 8e-3, "buffer": 8.1e-3, "bfloat16": 1.2e-2},
        "sum": {"wide": 1e-7, "buffer": 2e-3, "bfloat16": 9e-3},
    }
    return {
        against: {kind: {"64": {"all": error}} for kind, error in (kinds | changed.get(against, {})).items()}
        for against, kinds in errors.items()
    }


def test_the_right_order_of_errors_passes() -> None:
    assert made.disorder(an_order()) == []


@pytest.mark.parametrize(
    "changed",
    [{"network": {"wide": 1.2e-2}}, {"network": {"float32": 1e-2}}, {"sum": {"wide": 2e-3}}, {"sum": {"buffer": 9e-3}}],
)
def test_another_order_is_named(changed: dict[str, dict[str, float]]) -> None:
    (fault,) = made.disorder(an_order(**changed))
    (against,) = changed
    assert fault.startswith(f"{against}, all: expected ")


def test_not_a_number_is_no_order() -> None:
    assert made.disorder(an_order(sum={"wide": float("nan")}))


@pytest.mark.parametrize("seed", RECORD["gradients"])
def test_the_recorded_errors_are_in_order(seed: str) -> None:
    assert made.disorder(RECORD["gradients"][seed]) == []


def test_the_record_is_whole() -> None:
    seeds = {str(seed) for seed in made.SEEDS}
    assert set(RECORD["losses"]) == set(made.NAMES)
    assert all(set(runs) == seeds for runs in RECORD["losses"].values())
    assert {len(losses) for runs in RECORD["losses"].values() for losses in runs.values()} == {training.STEPS}
    assert set(RECORD["gradients"]) <= seeds and len(RECORD["gradients"]) in made.T_95
    assert set(RECORD["tpu"]) == set(training.TOPOLOGIES)


def test_a_record_that_is_written_is_read_again(tmp_path: Path) -> None:
    made.write(RECORD, tmp_path / "record.json")
    assert made.read(tmp_path / "record.json") == RECORD
    assert made.read(tmp_path / "none.json")["losses"] == {}


def test_the_page_has_the_tables_of_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert training.with_tables(text) == text
    with pytest.raises(SystemExit, match="expected one place for the table losses"):
        training.with_tables("")


def test_a_step_is_64_micro_steps_and_one_of_the_optimizer() -> None:
    assert made.step_cycles({"micro-step": {"cycles": 3}, "optimizer step": {"cycles": 5}}) == 64 * 3 + 5


def test_wide_gradients_cost_no_more_cycles_than_buffers_by_hand() -> None:
    for kinds in RECORD["tpu"].values():
        assert made.step_cycles(kinds["wide"]) <= made.step_cycles(kinds["buffer"])


@pytest.mark.parametrize("figure", ["losses", "errors"])
def test_the_page_has_the_charts(figure: str) -> None:
    name = f"training-{figure}.svg"
    assert f"images/{name}" in PAGE.read_text(encoding="utf-8")
    drawn = "".join(ET.parse(ROOT / "docs" / "images" / name).getroot().itertext())
    names = made.NAMES if figure == "losses" else made.GRADIENT_NAMES
    assert all(text in drawn for text in names.values())
