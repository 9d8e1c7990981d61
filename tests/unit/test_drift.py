import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from made_up import PATCH, Tree, make_wheel

from castoff.core.console import Console
from castoff.core.errors import CheckoutError, FetchError, TopicError
from castoff.model.topics import load_topics
from castoff.upstream.drift import best_pins, show_drift

ROOT = Path(__file__).resolve().parents[2]
OTHER = "first = 1\nsecond = 2\nthird = 3\nfourth = 4\nfifth = 5\n"
CPP_PATCH = """diff --git a/torch/engine.cpp b/torch/engine.cpp
--- a/torch/engine.cpp
+++ b/torch/engine.cpp
@@ -1 +1,2 @@
 one
+two
"""


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A checkout of a newer torch."""
    folder = tmp_path / "newer"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "other.py").write_text(f"{OTHER}sixth = 6\n")
    (folder / "version.txt").write_text("2.10.0a0\n")
    return folder


def _drift(tree: Tree, against: Path | str, *names: str, python: Path | None = None) -> tuple[bool, dict[str, dict]]:
    out = io.StringIO()
    well = show_drift(
        str(against),
        project="torch",
        names=names,
        python=python,
        tests=python is not None,
        indexes=(),
        console=Console(json_lines=True, out=out, err=io.StringIO()),
        root=tree.root,
    )
    result = json.loads(out.getvalue().splitlines()[-1])
    assert result["well"] == well
    return well, {topic["topic"]: topic for topic in result["topics"]}


def test_a_topic_that_still_applies(full_tree: Tree, newer: Path) -> None:
    before = (newer / "torch" / "other.py").read_text()
    well, topics = _drift(full_tree, newer)
    assert well
    assert topics["torch/answer"]["applies"]
    assert topics["torch/answer"]["hunks_of"] == "2.9"
    assert "torch_xla/xla" not in topics
    assert (newer / "torch" / "other.py").read_text() == before
    assert not (newer / "torch" / "_answer.py").exists()


def test_a_topic_that_conflicts_says_where(full_tree: Tree, newer: Path) -> None:
    (newer / "torch" / "other.py").write_text(OTHER.replace("second = 2", "second = 22"))
    well, topics = _drift(full_tree, newer)
    assert not well
    answer = topics["torch/answer"]
    assert not answer["applies"]
    assert answer["needs_a_hand"]
    (conflict,) = [file for file in answer["files"] if file["outcome"] != "clean"]
    assert conflict["path"] == "torch/other.py"
    assert conflict["outcome"] == "conflict"
    assert "second = 22" in conflict["detail"]


def test_hunks_that_are_there_and_files_that_are_there(full_tree: Tree, newer: Path) -> None:
    (newer / "torch" / "other.py").write_text(OTHER.replace("third = 3", "third = 30"))
    (newer / "torch" / "_answer.py").touch()
    _, topics = _drift(full_tree, newer)
    outcomes = {file["path"]: file["outcome"] for file in topics["torch/answer"]["files"]}
    assert outcomes["torch/other.py"] == "already upstream"
    assert outcomes["torch/_answer.py"] == "conflict"


def test_a_release_is_taken_from_the_package_index(full_tree: Tree) -> None:
    files = {**full_tree.files["torch"], "torch/other.py": OTHER.encode()}
    make_wheel(full_tree.wheels, "torch", "2.10.0", files)
    well, topics = _drift(full_tree, "2.10")
    assert well
    assert topics["torch/answer"]["applies"]
    with pytest.raises(FetchError, match=r"no torch 2\.11"):
        _drift(full_tree, "2.11")


def test_what_a_wheel_does_not_have_is_said(full_tree: Tree) -> None:
    full_tree.topic("deep", {"hunks/2.9.patch": CPP_PATCH, "files/torch/deep.py": ""})
    _, topics = _drift(full_tree, "2.9")
    assert topics["torch/deep"]["skipped"] == ["torch/engine.cpp"]
    assert topics["torch/deep"]["applies"]


def test_a_checkout_with_topics_in_it_is_refused(full_tree: Tree, newer: Path) -> None:
    (newer / "torch" / "_castoff.py").touch()
    with pytest.raises(CheckoutError, match="already has castoff's topics"):
        _drift(full_tree, newer)


def test_a_folder_that_is_no_checkout(full_tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="not a tree of upstream"):
        _drift(full_tree, tmp_path)


def test_a_topic_that_is_not_there(full_tree: Tree, newer: Path) -> None:
    with pytest.raises(TopicError, match="no topic anser"):
        _drift(full_tree, newer, "anser")


def test_the_hunks_of_the_nearest_pin_go_first_and_in_a_checkout_those_with_cpp(tree: Tree) -> None:
    hunks = {"hunks/2.1.patch": CPP_PATCH, "hunks/2.6.patch": CPP_PATCH, "hunks/2.9.patch": PATCH}
    tree.topic("a", hunks, pins='{"2.9" = "applies", "2.6" = "applies", "2.1" = "applies", "2.0" = "upstream"}')
    (topic,) = load_topics(tree.root / "patches")
    assert best_pins(topic, "2.13.0", whole=False) == ["2.9", "2.6", "2.1"]
    assert best_pins(topic, "2.7.1", whole=False) == ["2.6", "2.9", "2.1"]
    assert best_pins(topic, "2.13.0", whole=True) == ["2.6", "2.1", "2.9"]


TESTS = """
import pytest

@pytest.mark.fails_on_stock
@pytest.mark.parametrize("there", [True, True, False])
def test_difference(there):
    assert there

@pytest.mark.passes_on_stock
@pytest.mark.parametrize("as_before", [True, False])
def test_as_it_was(as_before):
    assert as_before

def test_neither():
    assert False
"""


def test_what_is_upstream_is_found_by_behaviour(full_tree: Tree, newer: Path) -> None:
    toml = full_tree.root / "patches/torch/answer/topic.toml"
    text = toml.read_text().replace('kind = "never"', 'kind = "waiting"')
    toml.write_text(f'tests = ["tests/test_answer.py", "tests/test_broken.py"]\n{text}')
    tests = full_tree.root / "tests"
    tests.mkdir()
    for name in ("conftest.py", "earlier_pins.py", "slices.py", "stock_record.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    (tests / "test_answer.py").write_text(TESTS)
    (tests / "test_broken.py").write_text("import nothing_of_that_name\n")
    site = newer / "site"  # so that torch is there, as in an environment
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    python = newer / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    well, topics = _drift(full_tree, newer, "answer", python=python)
    assert well
    ran, broken = topics["torch/answer"]["tests"]
    assert (ran["arrived"], ran["absent"], ran["broken"]) == (2, 1, 1)
    assert "nothing_of_that_name" in broken["unrun"]
    assert topics["torch/answer"]["upstream"] == pytest.approx(2 / 3)
    # What is all upstream needs no hand, wherever it conflicts.
    (tests / "test_answer.py").write_text(TESTS.replace("True, True, False", "True"))
    (newer / "torch" / "other.py").write_text("")
    well, topics = _drift(full_tree, newer, "answer", python=python)
    assert well
    assert topics["torch/answer"]["upstream"] == 1
    assert not topics["torch/answer"]["applies"]
