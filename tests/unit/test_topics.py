import pytest
from made_up import Tree

from castoff.core.errors import TopicError
from castoff.core.places import ROOT
from castoff.model.topics import load_topics, registry, select


def test_topics_come_after_those_that_they_require(tree: Tree) -> None:
    tree.topic("a", {}, requires='["torch/z"]')
    tree.topic("z", {})
    tree.topic("b", {}, "torch_xla")
    keys = [topic.key for topic in load_topics(tree.root / "patches")]
    assert keys.index("torch/z") < keys.index("torch/a")
    assert set(keys) == {"torch/a", "torch/z", "torch_xla/b"}


def test_topics_come_after_those_that_they_name_and_do_not_need_them(tree: Tree) -> None:
    tree.topic("a", {}, after='["torch/z"]')
    tree.topic("z", {}, pins='{"2.9" = "cannot: gone"}')
    topics = load_topics(tree.root / "patches")
    assert [topic.name for topic in topics] == ["z", "a"]
    assert [topic.name for topic in select(topics, "2.9")] == ["a"]


def test_a_build_knows_its_topics_and_their_modules(tree: Tree) -> None:
    tree.topic("kill-switch", {})
    tree.topic("hunks", {}, requires='["torch/kill-switch"]')
    tree.topic("late", {"files/torch_xla/_late.py": ""}, "torch_xla", module='"_late"', requires='["torch_xla/soon"]')
    tree.topic("soon", {"files/torch_xla/_at_once.py": ""}, "torch_xla", module='"_at_once"')
    tree.topic(
        "of-cpp", {"files/torch_xla/csrc/x.cpp": ""}, "torch_xla", overlay='{exports = ["castoff_of_cpp_install"]}'
    )
    topics = load_topics(tree.root / "patches")
    made: dict[str, object] = {}
    exec(registry(topics, "torch_xla"), made)
    modules = {"of-cpp": "C++", "soon": "_at_once", "late": "_late"}
    assert (made["TOPICS"], made["OTHERS"]) == (modules, ["hunks"])
    assert list(made["TOPICS"]) == list(modules)
    exec(registry(topics, "torch"), made)
    assert (made["TOPICS"], made["OTHERS"]) == ({"hunks": ""}, list(modules))


def test_only_topics_that_apply_are_selected(tree: Tree) -> None:
    tree.topic("here", {})
    tree.topic("listed", {}, pins='{applies = ["2.9"], "2.6" = "upstream"}')
    tree.topic("there", {}, pins='{"2.9" = "upstream"}')
    tree.topic("nowhere", {}, pins='{"2.9" = "cannot: no such function"}')
    assert [topic.name for topic in select(load_topics(tree.root / "patches"), "2.9")] == ["here", "listed"]


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        ({"name": '"other"'}, "name"),
        ({"name": '"Not_A_Name"'}, "name"),
        ({"project": '"torch_xla"'}, "project"),
        ({"kind": '"because"'}, "kind"),
        ({"title": '"two\\nlines"'}, "title"),
        ({"why": '" "'}, "why"),
        ({"upstream": '["ftp://x"]'}, "upstream[0]"),
        ({"drop_when": ""}, "drop_when"),
        ({"pins": '{"2.9" = "maybe"}'}, "pins.2.9"),
        ({"pins": '{"2.9" = "cannot: "}'}, "pins.2.9"),
        ({"pins": '{"2.9" = "cannot: not tried"}'}, "pins.2.9"),
        ({"pins": '{"newest" = "applies"}'}, "pins.newest"),
        ({"pins": '{applies = ["newest"]}'}, "pins.newest"),
        ({"requires": '["z"]'}, "requires[0]"),
        ({"surprise": "1"}, "surprise"),
        ({"overlay": '{"2.9" = {interposes = []}}'}, "overlay.2.9.interposes"),
        ({"overlay": '{newest = {interpose = ["a"]}}'}, "overlay.newest"),
        ({"overlay": '{"2.9" = {exports = ["a"]}}'}, "overlay.2.9.exports"),
        ({"overlay": '{exports = ["a b"]}'}, "overlay.exports[0]"),
        ({"overlay": '{exports = ["a", "a"]}'}, "overlay.exports"),
        ({"overlay": '{interpose = ["a"], "2.9" = {interpose = ["a"]}}'}, "overlay.2.9.interpose"),
    ],
)
def test_a_malformed_topic_is_refused_by_key(tree: Tree, extra: dict[str, str], key: str) -> None:
    tree.topic("x", {}, **extra)
    with pytest.raises(TopicError) as caught:
        load_topics(tree.root / "patches")
    assert f"{key} is wrong" in caught.value.summary


@pytest.mark.parametrize(
    ("files", "extra", "found"),
    [
        ({"files/torch/notes.md": ""}, {}, "files/torch/notes.md"),
        ({"overlay/x.py": ""}, {}, "overlay/x.py"),
        ({"hunks/2.8.patch": ""}, {}, "hunks/2.8.patch"),
        ({"hunks/2.9.diff": ""}, {}, "hunks/2.9.diff"),
        ({"hunks/unproven.patch": ""}, {}, "`unproven` is []"),
        ({}, {"unproven": '["2.9"]'}, "`unproven` is ['2.9']"),
        ({}, {"requires": '["torch/none"]'}, "no such topic"),
        ({}, {"after": '["torch/none"]'}, "no such topic"),
        ({}, {"module": '"_x"'}, "no such file"),
        ({}, {"overlay": '{exports = ["a"]}'}, "none"),
    ],
)
def test_an_inconsistent_topic_is_refused(tree: Tree, files: dict[str, str], extra: dict[str, str], found: str) -> None:
    tree.topic("x", files, **extra)
    with pytest.raises(TopicError) as caught:
        load_topics(tree.root / "patches")
    assert caught.value.found == found


def test_only_topics_of_torch_can_interpose(tree: Tree) -> None:
    tree.topic("x", {"overlay/x.cpp": ""}, "torch_xla", overlay='{"2.9" = {interpose = ["f"]}}')
    with pytest.raises(TopicError, match="interpose"):
        load_topics(tree.root / "patches")


def test_a_cycle_is_shown(tree: Tree) -> None:
    tree.topic("a", {}, requires='["torch/b"]')
    tree.topic("b", {}, requires='["torch/a"]')
    with pytest.raises(TopicError) as caught:
        load_topics(tree.root / "patches")
    assert "torch/a -> " in caught.value.found


def test_a_topic_must_speak_of_the_pin(tree: Tree) -> None:
    tree.topic("a", {}, pins='{"2.6" = "applies"}')
    with pytest.raises(TopicError) as caught:
        select(load_topics(tree.root / "patches"), "2.9")
    assert caught.value.expected == '"2.9" under [pins]'


def test_a_topic_cannot_apply_without_what_it_requires(tree: Tree) -> None:
    tree.topic("a", {}, pins='{"2.9" = "cannot: gone"}')
    tree.topic("b", {}, requires='["torch/a"]')
    with pytest.raises(TopicError, match="torch/b is not consistent"):
        select(load_topics(tree.root / "patches"), "2.9")


def test_the_content_hash_is_of_what_goes_into_a_build(tree: Tree) -> None:
    folder = tree.topic("a", {"files/torch/a.py": "1\n", "hunks/2.9.patch": "x"})

    def content_hash() -> str:
        return load_topics(tree.root / "patches")[0].content_hash("2.9")

    before = content_hash()
    (folder / "upstream").mkdir()
    (folder / "upstream" / "message.md").write_text("a pull request")
    (folder / "files" / "torch" / "__pycache__").mkdir()
    (folder / "files" / "torch" / "__pycache__" / "a.pyc").write_text("")
    assert content_hash() == before
    (folder / "files" / "torch" / "a.py").write_text("2\n")
    assert content_hash() != before


def test_our_own_topics_are_well_formed() -> None:
    topics = load_topics(ROOT / "patches")
    assert select(topics, "2.9")
