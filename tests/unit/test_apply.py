import subprocess

import pytest
from made_up import PATCH, Tree

from castoff.builder.apply import Applied, apply_topics
from castoff.core.errors import ApplyError
from castoff.core.runner import Runner
from castoff.model.topics import load_topics, select


def _apply(tree: Tree, runner: Runner) -> Applied:
    tree.finish()
    work = tree.root / "work"
    work.mkdir()
    # A repository around the work tree, as dist/ has one: git must not take notice of it.
    subprocess.run(["git", "init", "--quiet", str(tree.root)], check=True)
    topics = [topic for topic in select(load_topics(tree.root / "patches"), "2.9") if topic.project == "torch"]
    return apply_topics(topics, "2.9", next(tree.wheels.glob("torch-*.whl")), work, runner)


def _failure(tree: Tree, runner: Runner) -> ApplyError:
    with pytest.raises(ApplyError) as caught:
        _apply(tree, runner)
    return caught.value


def test_clean(tree: Tree, runner: Runner) -> None:
    cpp = "diff --git a/torch/csrc/x.cpp b/torch/csrc/x.cpp\n--- a/torch/csrc/x.cpp\n+++ b/torch/csrc/x.cpp\n"
    cpp += "@@ -1 +1 @@\n-int x;\n+int y;\n"
    tree.topic("one", {"files/torch/_one.py": "one = 1\n", "hunks/2.9.patch": PATCH + cpp})
    applied = _apply(tree, runner)
    assert applied.added == {"torch/_one.py": b"one = 1\n"}
    assert applied.changed == {"torch/other.py": b"first = 1\nsecond = 2\nthird = 30\nfourth = 4\nfifth = 5\n"}
    assert {(trial.path, trial.outcome.value) for trial in applied.trials} == {
        ("torch/_one.py", "clean"),
        ("torch/other.py", "clean"),
    }


def test_a_later_topic_builds_on_an_earlier_one(tree: Tree, runner: Runner) -> None:
    tree.topic("b-first", {"hunks/2.9.patch": PATCH})
    later = PATCH.replace("third = 3\n+third = 30", "third = 30\n+third = 300")
    tree.topic("a-later", {"hunks/2.9.patch": later}, requires='["torch/b-first"]')
    assert b"third = 300\n" in _apply(tree, runner).changed["torch/other.py"]


def test_conflict_shows_what_was_expected_and_what_is_there(tree: Tree, runner: Runner) -> None:
    tree.topic("one", {"hunks/2.9.patch": PATCH.replace(" second = 2", " second = two")})
    error = _failure(tree, runner)
    assert "torch/one: torch/other.py: conflict" in error.found
    assert "| second = two" in error.found
    assert "| second = 2" in error.found


def test_already_upstream(tree: Tree, runner: Runner) -> None:
    tree.files["torch"]["torch/other.py"] = b"first = 1\nsecond = 2\nthird = 30\nfourth = 4\nfifth = 5\n"
    tree.topic("one", {"hunks/2.9.patch": PATCH})
    error = _failure(tree, runner)
    assert "torch/one: torch/other.py: already upstream" in error.found
    assert "set 2.9 to 'upstream'" in error.next_step


def test_target_missing(tree: Tree, runner: Runner) -> None:
    tree.topic("one", {"hunks/2.9.patch": PATCH.replace("torch/other.py", "torch/gone.py")})
    assert "torch/one: torch/gone.py: target missing" in _failure(tree, runner).found


@pytest.mark.parametrize("patch", ["", "not a patch\n", PATCH.replace("@@ -1,5 +1,5 @@", "@@ -1,9 +1,9 @@")])
def test_corrupt(tree: Tree, runner: Runner, patch: str) -> None:
    tree.topic("one", {"hunks/2.9.patch": patch})
    assert "torch/one: 2.9.patch: corrupt" in _failure(tree, runner).found


def test_a_hunk_may_not_remove_a_file(tree: Tree, runner: Runner) -> None:
    tree.files["torch"]["torch/short.py"] = b"a\n"
    patch = "diff --git a/torch/short.py b/torch/short.py\ndeleted file mode 100644\n--- a/torch/short.py\n"
    tree.topic("one", {"hunks/2.9.patch": patch + "+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"})
    assert "torch/one: torch/short.py: corrupt" in _failure(tree, runner).found


def test_a_new_file_must_be_new(tree: Tree, runner: Runner) -> None:
    tree.topic("one", {"files/torch/other.py": "x = 1\n"})
    assert "torch/one: torch/other.py: conflict" in _failure(tree, runner).found


def test_every_topic_is_tried_before_stopping(tree: Tree, runner: Runner) -> None:
    tree.topic("one", {"hunks/2.9.patch": PATCH.replace("torch/other.py", "torch/gone.py")})
    tree.topic("two", {"hunks/2.9.patch": PATCH.replace(" second = 2", " second = two")})
    tree.topic("three", {"files/torch/other.py": ""})
    error = _failure(tree, runner)
    for line in ("torch/one: torch/gone.py: target missing", "torch/two: torch/other.py: conflict", "torch/three: "):
        assert line in error.found
    assert "3 topic(s)" in error.summary
