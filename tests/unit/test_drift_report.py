"""ci/drift.py: what it makes of `castoff drift`, night after night."""

import json
from pathlib import Path

import pytest

from ci import drift
from ci.drift import Fare

ROW = {
    "topic": "torch/third",
    "applies": False,
    "upstream": 0.25,
    "files": [
        {"path": "torch/_third.py", "outcome": "clean", "detail": ""},
        {"path": "torch/_there.py", "outcome": "already upstream", "detail": ""},
        {"path": "torch/other.py", "outcome": "conflict", "detail": "expected third = 3\nfound third = 4"},
    ],
}
TESTED = {**ROW, "applies": True, "upstream": 0.5, "tests": [{"arrived": 1, "absent": 2}, {"arrived": 2, "absent": 1}]}
CONFLICT = Fare("torch/other.py: conflict", "25%", "torch/other.py: expected third = 3\nfound third = 4")
WELL = Fare("yes", "not tried")


def test_a_conflict_says_where() -> None:
    assert drift.fare_of(ROW) == CONFLICT


def test_what_applies() -> None:
    assert drift.fare_of({**ROW, "applies": True, "upstream": None}) == WELL


def test_the_table_has_releases_in_order_and_branches_last() -> None:
    half = drift.fare_of(TESTED)
    whole = drift.fare_of({**TESTED, "tests": [{"arrived": 4, "absent": 0}]})
    results = {
        "torch=main": {"torch/third": CONFLICT},
        "torch=2.10": {"torch/third": half, "torch/other": WELL},
        "torch=2.9": {"torch/third": whole},
    }
    assert drift.table(results).splitlines() == [
        "| topic | torch=2.9 | torch=2.10 | torch=main |",
        "| --- | --- | --- | --- |",
        "| `torch/other` |  | applies |  |",
        "| `torch/third` | upstream (4 of 4) | applies (3 of 6) | conflicts |",
    ]


def test_what_changed() -> None:
    before = {"torch=main": {"torch/third": WELL, "torch/old": WELL}, "torch=2.13": {"torch/third": WELL}}
    now = {"torch=main": {"torch/third": CONFLICT, "torch/new": WELL}, "torch_xla=master": {"torch_xla/a": WELL}}
    assert sorted(drift.changes(before, now)) == [
        "torch/new on torch=main: new here",
        "torch/old on torch=main: gone",
        "torch/third on torch=main: applies: yes → torch/other.py: conflict",
        "torch/third on torch=main: upstream: not tried → 25%",
    ]


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run ci/drift.py with what it would find of torch's and torch_xla's main branches."""

    def night(**found: dict[str, Fare]) -> tuple[int, str]:
        monkeypatch.setattr(drift, "look", lambda project, against, *options: (found[project], f"the {project}"))
        out = str(tmp_path / "drift")
        arguments = ["drift.py", out, *(f"{project}=main" for project in found), "--before", out]
        monkeypatch.setattr("sys.argv", arguments)
        return drift.main(), (tmp_path / "drift" / "report.md").read_text()

    return night


def test_night_after_night(nights, tmp_path: Path) -> None:
    status, text = nights(torch={"torch/third": WELL})
    assert status == 0
    assert "changed" not in text
    assert "| `torch/third` | yes | not tried |" in text
    status, text = nights(torch={"torch/third": WELL})
    assert status == 0
    assert "Nothing changed." in text
    status, text = nights(torch={"torch/third": CONFLICT})
    assert status == drift.CHANGED
    assert "- torch/third on torch=main: applies: yes → torch/other.py: conflict" in text
    assert "expected third = 3\nfound third = 4" in text
    assert nights(torch={"torch/third": CONFLICT})[0] == 0


def test_an_upstream_out_of_reach_is_not_forgotten(nights, tmp_path: Path) -> None:
    nights(torch={"torch/third": WELL}, torch_xla={"torch_xla/a": WELL})
    status, text = nights(torch={"torch/third": WELL}, torch_xla={})
    assert status == drift.NOT_LOOKED_AT
    assert "## torch_xla=main\n\nthe torch_xla" in text
    kept = json.loads((tmp_path / "drift" / "drift.json").read_text())
    assert kept["torch_xla=main"]["torch_xla/a"]["applies"] == "yes"
    assert nights(torch={"torch/third": WELL}, torch_xla={"torch_xla/a": CONFLICT})[0] == drift.CHANGED
