"""Which cases run on which earlier pin."""

import datetime as dt
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pins(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    monkeypatch.setenv("CASTOFF_DAY", "2026-11-24")
    import earlier_pins

    return earlier_pins


def stating_ir():
    return ir  # noqa: F821


def case(number, *, marks=(), function=stating_ir):
    path = Path("tests/ir/test_values.py")
    return SimpleNamespace(
        nodeid=f"{path}::test_a[{number}]",
        path=path,
        function=function,
        get_closest_marker=lambda name: name if name in marks else None,
    )


CASES = [case(number) for number in range(200)]


def kept(pins, pin, cases, every_case=lambda module: False):
    left = pins.left_out(cases, pin, every_case)
    return [item for item in cases if item not in left]


def test_a_sixth_of_the_cases_run_on_a_pin(pins):
    assert 20 <= len(kept(pins, "2.8", CASES)) <= 50


def test_24_days_of_one_pin_run_every_case_on_every_pin(pins, monkeypatch):
    ran = {pin: set() for pin in pins.EARLIER}
    for n in range(24):
        monkeypatch.setenv("CASTOFF_DAY", str(dt.date(2026, 11, 24) + dt.timedelta(n)))
        (pin,) = pins.pins_of_day()
        ran[pin] |= {item.nodeid for item in kept(pins, pin, CASES)}
    assert all(len(own) == len(CASES) for own in ran.values())


def test_all_runs_every_case_on_every_pin(pins, monkeypatch):
    monkeypatch.setenv("CASTOFF_DAY", "all")
    assert pins.pins_of_day() == pins.EARLIER
    assert all(kept(pins, pin, CASES) == CASES for pin in pins.EARLIER)


def test_on_2_7_tests_state_an_ir(pins):
    others = [case(number, function=lambda: None) for number in range(50)]
    assert kept(pins, "2.7", others) == []
    assert kept(pins, "2.8", others) != []


def test_what_is_the_same_on_every_pin_is_the_default_one_s(pins):
    same = [case(1, marks=("slow",)), case(2, marks=("default_pin",))]
    assert kept(pins, "2.8", same, every_case=lambda module: True) == []


def test_every_case_of_what_has_changed(pins):
    assert kept(pins, "2.8", CASES, every_case=lambda module: module == "test_values") == CASES


def test_what_has_changed(pins):
    files = [
        "pins/2.7-tpu.lock",
        "pins/2.8.toml",
        "patches/torch/grad-dtype/hunks/2.6+2.7.patch",
        "patches/torch_xla/wide-weight-grad/files/torch_xla/csrc/castoff/wide_weight_grad_versions.h",
        "patches/torch_xla/values/files/torch_xla/csrc/castoff/values.cpp",
    ]
    assert [pin for pin in pins.EARLIER if pins.is_of_pin(pin, files)] == ["2.8"]
    assert pins.topics_of_pin("2.6", files) == {"grad-dtype", "wide-weight-grad"}
    assert pins.topics_of_pin("2.1", files) == {"wide-weight-grad"}
    assert not pins.is_of_pin("2.1", ["pins/2.15.toml"])
