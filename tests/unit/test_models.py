"""The record of models: the page says what it says, and what is not as recorded is named."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def models(monkeypatch):
    for folder in ("bench", "tests", "tests/programs"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import models

    return models


def row(kind, left=()):
    modes = {mode: {"kind": "right", "detail": "", "left": [], "compilations": 2} for mode in ("float32", "bfloat16")}
    return {"name": "one", **modes, "autocast": {"kind": kind, "detail": "off", "left": [*left], "compilations": 2}}


def test_the_page_says_what_is_recorded(models):
    assert models.page(models.read()) in models.DOCUMENT.read_text(encoding="utf-8")
    assert models.sentence(models.read()) in models.README.read_text(encoding="utf-8")


def test_nothing_is_worse_than_on_stock_wheels(models):
    worse = [
        name
        for name, line in models.read().items()
        for castoff, stock in zip(line["castoff"]["outcomes"], line["stock"]["outcomes"], strict=True)
        if castoff and stock and models.rank(castoff) > models.rank(stock)
    ]
    assert worse == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (row("wrong gradient"), None),
        (row("right"), "recorded is: wrong gradient"),
        (row("dies"), "worse than on stock wheels: wrong output"),
        (row("wrong gradient", ["aten::lu"]), "aten::lu left the device"),
        ({"name": "one", "kind": "dies", "detail": ""}, "float32: dies"),
        ({"name": "one", "unavailable": "no such model"}, "does not run on the CPU"),
    ],
)
def test_what_is_not_as_recorded_is_named(models, found, problem):
    stock = {"outcomes": ["right", "right", "wrong output"], "left": []}
    record = {"one": {"castoff": models.line_of(row("wrong gradient")), "stock": stock}}
    problems = models.problems(iter([found]), record)
    assert problems == [] if problem is None else problem in problems[0]


def test_page_and_sentence_count_the_models_that_have_a_mode(models):
    def side(*outcomes: str) -> dict:
        return {"outcomes": [*outcomes], "compilations": 6, "left": [], "error": 0.9}

    record = {"one": {"castoff": side("right", "right", ""), "stock": side("right", "wrong buffer", "")}}
    record["interrupted"] = {"castoff": side("right", "right", "right")}
    text = models.page(record)
    assert "| one | right | wrong buffer → right | – | 6 | nothing | 0.9 |" in text
    assert "| autocast | 0 of 0 | 0 of 0 |" in text
    assert "1 of 1 in float32 (1 on stock), 1 of 1 in bfloat16 (0 on stock) and" in models.sentence(record)
