from pathlib import Path

import pytest
from made_up import Tree

from castoff.model.lint import lint_topics

HUNK = """diff --git a/torch/x.py b/torch/x.py
--- a/torch/x.py
+++ b/torch/x.py
@@ -1,{before} +1,{after} @@
{lines}
"""


@pytest.fixture
def sound(tree: Tree) -> Path:
    """A tree with one topic that owes nothing; its folder."""
    folder = tree.topic(
        "sound",
        {"example.py": "print()\n"},
        kind='"waiting"',
        upstream='["https://github.com/pytorch/pytorch/issues/1"]',
        tests='["tests/test_sound.py"]',
    )
    (tree.root / "pins").mkdir(exist_ok=True)
    (tree.root / "pins" / "2.9.toml").touch()
    (tree.root / "tests").mkdir()
    (tree.root / "tests" / "test_sound.py").write_text("@pytest.mark.fails_on_stock\ndef test_it():\n    ir(1)\n")
    with (tree.root / "CHANGELOG.md").open("a") as file:
        file.write("\n- `sound`: a thing.\n")
    (tree.root / "docs").mkdir()
    (tree.root / "docs" / "topics.md").write_text("| [`sound`](../patches/torch/sound) | a thing |\n")
    return folder


def _owed(folder: Path) -> list[str]:
    findings = [finding for finding in lint_topics(folder.parents[2]) if finding.topic == "torch/sound"]
    return [f"{finding.expected}: {finding.found}" for finding in findings]


def _replace(folder: Path, before: str, after: str) -> None:
    path = folder / "topic.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_sound_topic_owes_nothing(sound: Path) -> None:
    assert _owed(sound) == []


@pytest.mark.parametrize("links", ["[]", '["https://github.com/pytorch/pytorch"]'])
@pytest.mark.parametrize(("kind", "word"), [("waiting", "waiting"), ("backport", "a backport")])
def test_a_reason_without_a_link(sound: Path, kind: str, word: str, links: str) -> None:
    _replace(sound, '"waiting"', f'"{kind}"')
    _replace(sound, '["https://github.com/pytorch/pytorch/issues/1"]', links)
    (owed,) = _owed(sound)
    assert "a link" in owed
    assert word in owed


def test_what_is_never_for_upstream_needs_neither_link_nor_example(sound: Path) -> None:
    _replace(sound, '"waiting"', '"never"')
    _replace(sound, '["https://github.com/pytorch/pytorch/issues/1"]', "[]")
    (sound / "example.py").unlink()
    assert _owed(sound) == []


def test_a_pin_that_the_topic_does_not_know(sound: Path) -> None:
    (sound.parents[2] / "pins" / "2.6.toml").touch()
    assert _owed(sound) == ['"2.6" under [pins]: no such key']


@pytest.mark.parametrize(
    ("lines", "owed"),
    [
        ([" a"] * 3 + ["-b", "+c"] + [" d"] * 3, []),
        (["+c"] * 12, []),
        (["+c"] * 13, ["a hunk that adds at most 12 lines (2.9, torch/x.py -1,0 +1,13): 13 lines"]),
        ([" a"] * 4 + ["+c"], ["at most 3 lines of context on either side (2.9, torch/x.py -1,4 +1,5): 4 lines"]),
        (["+c"] + [""] * 4, ["at most 3 lines of context on either side (2.9, torch/x.py -1,4 +1,5): 4 lines"]),
    ],
)
def test_hunks_are_small(sound: Path, lines: list[str], owed: list[str]) -> None:
    before = sum(not line.startswith("+") for line in lines)
    after = sum(not line.startswith("-") for line in lines)
    (sound / "hunks").mkdir()
    text = HUNK.format(before=before, after=after, lines="\n".join(lines))
    (sound / "hunks" / "2.9.patch").write_text(text)
    assert _owed(sound) == owed


def test_each_hunk_of_each_file_is_looked_at(sound: Path) -> None:
    (sound / "hunks").mkdir()
    long = HUNK.format(before=0, after=13, lines="\n".join(["+c"] * 13))
    (sound / "hunks" / "2.9.patch").write_text(f"{long}{long.replace('x.py', 'y.py')}\n@@ -9,0 +9,1 @@\n+c\n")
    assert [owed.split(",")[1] for owed in _owed(sound)] == [" torch/x.py -1", " torch/y.py -1"]


@pytest.mark.parametrize(
    ("tests", "owed"),
    [
        ("[]", ["`tests`, the files that prove the topic: none"]),
        (
            '["tests/test_gone.py"]',
            [
                "tests/test_gone.py, which is in `tests`: no such file",
                "a test marked fails_on_stock, which must fail on stock wheels in ci/test.sh: none in `tests`",
            ],
        ),
    ],
)
def test_tests_are_there(sound: Path, tests: str, owed: list[str]) -> None:
    _replace(sound, '["tests/test_sound.py"]', tests)
    assert _owed(sound) == owed


UNUSED = """
fails_on_stock = pytest.mark.fails_on_stock
@pytest.mark.passes_on_stock
def test_it():
    ir(1)  # fails_on_stock
@fails_on_stock
def helper():
    ir(1)
"""


@pytest.mark.parametrize("text", ["def test_it():\n    ir(1)\n", UNUSED])
def test_a_test_that_passes_on_stock_proves_nothing(sound: Path, text: str) -> None:
    (sound.parents[2] / "tests" / "test_sound.py").write_text(text)
    (owed,) = _owed(sound)
    assert owed == "a test marked fails_on_stock, which must fail on stock wheels in ci/test.sh: none in `tests`"


BY_ANOTHER_NAME = """
on_2_1 = pytest.mark.fails_on_stock("2.1")
@pytest.mark.parametrize("x", [1])
@on_2_1
def test_it():
    assert hlo(1) == ""
"""
IMPORTED = """
from marks import fails_on_stock
@fails_on_stock
def test_it():
    ir(1)
"""
BY_ITS_CLASS = """
@pytest.mark.fails_on_stock
class TestIt:
    def test_it(self):
        assert_expected_inline(ir(1), "")
"""
BY_THE_MODULE = """
pytestmark = pytest.mark.fails_on_stock
def test_it(expect_tpu):
    expect_tpu("")
"""


@pytest.mark.parametrize("text", [BY_ANOTHER_NAME, IMPORTED, BY_ITS_CLASS, BY_THE_MODULE])
def test_every_way_to_mark_one_counts(sound: Path, text: str) -> None:
    (sound.parents[2] / "tests" / "test_sound.py").write_text(text)
    assert _owed(sound) == []


def test_a_topic_shows_in_the_graph(sound: Path) -> None:
    path = sound.parents[2] / "tests" / "test_sound.py"
    path.write_text("@pytest.mark.fails_on_stock\ndef test_it(): ...\ndef test_of_the_graph():\n    ir(1)\n")
    (owed,) = _owed(sound)
    assert owed.startswith("a test marked fails_on_stock that states the IR or the HLO of a program")
    assert owed.endswith("none of the 1 with that mark")
    _replace(sound, '"waiting"', '"never"')
    assert _owed(sound) == []


def test_what_users_see_of_it(sound: Path) -> None:
    (sound / "example.py").unlink()
    (sound.parents[2] / "CHANGELOG.md").write_text("## [castoff.1] - 2026-11-21\n")
    example, changelog = _owed(sound)
    assert example.startswith("example.py")
    assert changelog.startswith("`sound` in CHANGELOG.md")


def test_a_row_of_the_readme_is_missing(sound: Path) -> None:
    (sound.parents[2] / "docs" / "topics.md").write_text("| [`sound`](../patches/torch/other) | a thing |\n")
    (owed,) = _owed(sound)
    assert owed == "a row with [`sound`](../patches/torch/sound) in docs/topics.md: no such link"


@pytest.mark.parametrize(
    ("key", "owed"),
    [
        (
            "",
            "`module`, whose install() `import torch_xla` calls, its C++, or hunks: none of them",
        ),
        ('module = "_sound"', None),
        ('overlay = {exports = ["castoff_sound_install"]}', None),
    ],
)
def test_a_topic_that_nothing_installs(sound: Path, key: str, owed: str | None) -> None:
    patches = sound.parents[1]
    (patches / "torch_xla").mkdir(exist_ok=True)
    folder = sound.rename(patches / "torch_xla" / "sound")
    (folder / "files/torch_xla").mkdir(parents=True)
    (folder / "files/torch_xla/_sound.py").touch()
    (folder / "files/torch_xla/sound.cpp").touch()
    text = (folder / "topic.toml").read_text().replace('"torch"', '"torch_xla"')
    (folder / "topic.toml").write_text(f"{key}\n{text}")
    (patches.parent / "docs" / "topics.md").write_text("| [`sound`](../patches/torch_xla/sound) | a thing |\n")
    found = [f"{finding.expected}: {finding.found}" for finding in lint_topics(patches.parent)]
    assert found == ([owed] if owed else [])
