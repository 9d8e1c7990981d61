"""The table topic × pin."""

import io
import json
import re
import runpy

import pytest
from made_up import Tree

from castoff.cli import main as cli
from castoff.core.console import Console
from castoff.core.errors import TopicError
from castoff.core.places import ROOT
from castoff.model.pin import load_pin
from castoff.model.status import read_status
from castoff.model.topics import load_topics


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tree_of_two_pins(tree: Tree) -> Tree:
    (tree.root / "pins").mkdir(exist_ok=True)
    for pin in ("2.9", "2.10"):
        (tree.root / "pins" / f"{pin}.toml").write_text("")
    tree.topic("a", {}, pins='{"2.9" = "applies", "2.10" = "upstream"}')
    tree.topic("b", {}, pins='{"2.9" = "cannot: no such function", "2.10" = "applies"}')
    tree.topic("c", {}, pins='{"2.9" = "cannot: no such function", "2.10" = "cannot: [why not]"}')
    return tree


def test_each_reason_is_given_once(tree_of_two_pins: Tree) -> None:
    status = read_status(tree_of_two_pins.root)
    assert status.pins == ("2.10", "2.9")
    assert status.rows() == [
        ["torch/a", "upstream", "applies"],
        ["torch/b", "applies", "cannot (1)"],
        ["torch/c", "cannot (2)", "cannot (1)"],
    ]
    assert status.reasons() == ["no such function", "[why not]"]


def test_a_topic_that_says_nothing_of_a_pin_is_refused(tree_of_two_pins: Tree) -> None:
    tree_of_two_pins.topic("d", {}, pins='{"2.9" = "applies"}')
    with pytest.raises(TopicError) as caught:
        read_status(tree_of_two_pins.root)
    assert "torch/d" in caught.value.summary and '"2.10"' in caught.value.expected


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_table_with_the_reasons_below(stream: type[io.StringIO]) -> None:
    out = stream()
    Console(out=out).table(["topic", "2.9"], [["a", "applies"], ["b-longer", "cannot (1)"]], "(1) [no] reason", {})
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip() for line in out.getvalue().splitlines()]
    cells = [line.split() for line in lines]
    assert ["topic", "2.9"] in cells and ["a", "applies"] in cells and ["b-longer", "cannot", "(1)"] in cells
    assert lines[-1] == "(1) [no] reason"


def test_the_table_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    cli.app(["status", "--json"], standalone_mode=False)
    data = json.loads(capsys.readouterr().out)
    assert data["event"] == "result"
    assert data["topics"]["torch/data-setter"] == dict.fromkeys(data["pins"], "applies")
    # Only pin 2.6 has hunks on C++ that a compiler has seen.
    assert {pin for pins in data["unproven"].values() for pin in pins} == {"2.9", "2.8", "2.7"}
    assert set(data["pins"]) == {path.stem for path in (ROOT / "pins").glob("*.toml")}


def test_every_module_of_tests_is_named_by_a_topic() -> None:
    """So it is skipped where no topic that names it is part of the pin."""
    named = {name for topic in load_topics(ROOT / "patches") for name in topic.tests}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "ir").glob("test_*.py")}
    assert modules <= named


def test_tests_are_skipped_where_their_topics_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    why = runpy.run_path(str(ROOT / "tests" / "conftest.py"))["why_not_in_this_pin"]
    assert why("test_matmul_out_dtype", "2.9") is None
    assert why("test_matmul_out_dtype", "2.1").startswith("matmul-out-dtype on torch 2.1: cannot: ")
    assert why("test_kill_switch", "2.1") is None
    assert why("test_of_no_topic", "2.1") is None
    assert why("test_matmul_out_dtype", "2.13") is None
    assert why("test_grad_dtype_engine", "2.15") == "grad-dtype on torch 2.15: upstream"
    assert why("test_grad_dtype_conformance", "2.15") is None  # which states what upstream's own does


def test_the_table_of_pins_has_our_own_pins() -> None:
    table = (ROOT / "docs" / "pins.md").read_text(encoding="utf-8")
    topics = load_topics(ROOT / "patches")
    for pin in read_status(ROOT).pins:
        there: dict[str, bool] = {}
        for topic in topics:  # of two with one name, either
            there[topic.name] = there.get(topic.name, False) or topic.applies(pin)
        missing = [f"`{name}`" for name, applies in there.items() if not applies]
        present = [f"`{name}`" for name, applies in there.items() if applies]
        cell = ", ".join(present) if len(missing) > len(present) else f"all but {', '.join(missing)}"
        cell = cell if missing else "all"
        pythons = ", ".join(load_pin(ROOT / "pins", pin).pythons)
        assert re.search(
            rf"^\| {re.escape(pin)}(, the default)? \| {pythons} \| [^|]+ \| {cell} \|$", table, re.MULTILINE
        ), pin
