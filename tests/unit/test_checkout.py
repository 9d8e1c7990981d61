"""Checkouts of upstream's tree, from git and from a source package, and what `castoff refresh` makes of edits."""

import hashlib
import io
import os
import subprocess
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from made_up import Tree

from castoff.core.context import Context
from castoff.core.errors import ApplyError, CheckoutError, FetchError
from castoff.model.pin import Pin, SourcePackage, load_pin
from castoff.model.topics import Topic, load_topics, select
from castoff.upstream.checkout import checkout, topic_commits, update
from castoff.upstream.refresh import refresh
from castoff.upstream.repository import Repository
from castoff.upstream.source_tree import source_list

ENGINE = "".join(f"line {number};\n" for number in range(1, 41))
HUNKS = """diff --git a/torch/engine.cpp b/torch/engine.cpp
--- a/torch/engine.cpp
+++ b/torch/engine.cpp
@@ -10,2 +10,3 @@
 line 10;
+first();
 line 11;
"""


@dataclass
class Upstream:
    """An upstream repository, the topics for it, and the pin that names its commit."""

    tree: Tree
    pin: Pin
    folder: Path
    context: Context

    @property
    def topics(self) -> tuple[Topic, ...]:
        return select(load_topics(self.tree.root / "patches"), "2.9")

    def checkout(self, folder: Path) -> Path:
        checkout(self.pin, "torch", self.topics, folder, self.context)
        return folder


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=u", "-c", "user.email=u@localhost", "-C", folder, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _with(pin: Pin, **torch: object) -> Pin:
    """Return a pin with another torch release."""
    return pin.model_copy(update={"torch": pin.torch.model_copy(update=torch)})


@pytest.fixture
def upstream(full_tree: Tree, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """Upstream's repository, at the address that the made-up pin has; two topics, one above the other."""
    folder = tmp_path / "upstream" / "torch"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "engine.cpp").write_text(ENGINE)
    (folder / "torch" / "other.py").write_text("first = 1\nsecond = 2\nthird = 3\nfourth = 4\nfifth = 5\n")
    (folder / ".gitignore").write_text("*.o\n")
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message=release")
    _git(folder, "tag", "--annotate", "--message=release", "v2.9.0")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{folder.parent}/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.org/")
    second = HUNKS.replace("10", "30").replace("11", "31").replace("first", "second")
    full_tree.topic("below", {"hunks/2.9.patch": HUNKS, "files/torch/new.py": "new = 1\n"})
    above = {"hunks/2.9.patch": second.replace("-30,2 +30,3", "-31,2 +31,3")}
    full_tree.topic("above", above, requires='["torch/below"]')
    pin = load_pin(full_tree.root / "pins", "2.9")
    commit = _git(folder, "rev-parse", "HEAD")
    return Upstream(full_tree, _with(pin, commit=commit), folder, context)


def test_a_checkout_has_a_commit_for_each_topic(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    commits = topic_commits(Repository(folder, upstream.context.runner))
    assert [commit.topic for commit in commits] == ["torch/answer", "torch/below", "torch/above"]
    assert _git(folder, "rev-parse", f"{commits[0].commit}^") == upstream.pin.torch.commit
    assert _git(folder, "diff", "--stat", "--name-only", f"{commits[1].commit}^..{commits[1].commit}").split() == [
        "torch/engine.cpp",
        "torch/new.py",
    ]
    assert "first();\n" in (folder / "torch" / "engine.cpp").read_text()
    assert "second();\n" in (folder / "torch" / "engine.cpp").read_text()
    # The overlay's glue has no place in a checkout; the topics' C++ has.
    assert (folder / "torch" / "csrc" / "better.cpp").is_file()
    assert not list(folder.rglob("interpose.cpp"))
    assert _git(folder, "status", "--porcelain") == ""


def test_the_same_tree_and_topics_give_the_same_commits(upstream: Upstream, tmp_path: Path) -> None:
    one, two = (upstream.checkout(tmp_path / name) for name in ("one", "two"))
    assert _git(one, "rev-parse", "HEAD") == _git(two, "rev-parse", "HEAD")


def test_a_folder_in_use_is_left_alone(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(CheckoutError, match="in use"):
        upstream.checkout(tmp_path / "mine")


def test_a_tag_that_moved_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    _git(upstream.folder, "commit", "--quiet", "--allow-empty", "--message=later")
    _git(upstream.folder, "tag", "--force", "v2.9.0")
    with pytest.raises(FetchError) as caught:
        upstream.checkout(tmp_path / "checkout")
    assert caught.value.expected == f"commit {upstream.pin.torch.commit}"
    assert caught.value.found == _git(upstream.folder, "rev-parse", "HEAD")
    assert not (tmp_path / "checkout").exists()


def test_a_hunk_without_its_place_is_shown_with_the_files_lines(upstream: Upstream, tmp_path: Path) -> None:
    wrong = HUNKS.replace("10", "20").replace(" line 11;", " line eleven;")
    upstream.tree.topic("wrong", {"hunks/2.9.patch": wrong})
    with pytest.raises(ApplyError) as caught:
        upstream.checkout(tmp_path / "checkout")
    assert "torch/wrong: torch/engine.cpp: conflict" in caught.value.found
    assert "| line eleven;" in caught.value.found
    assert "| line 21;" in caught.value.found
    assert not (tmp_path / "checkout").exists()
    assert not list(tmp_path.glob(".checkout-*"))


# From a distribution's source package.

APT = """#!/usr/bin/env python3
import shutil, sys
if "indextargets" in sys.argv:
    print("http://mirror.example/debian/ stable bookworm")
if "source" in sys.argv:
    (listed,) = [word for word in sys.argv if word.startswith("Dir::Etc::sourcelist=")]
    assert "http://mirror.example/debian/ trixie main" in open(listed.partition("=")[2]).read()
    shutil.copy({archive!r}, "pytorch_2.9.0+dfsg.orig.tar.gz")
"""


@pytest.fixture
def packaged(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """A network that has no git host, and an apt that has the source package."""
    archive = tmp_path / "orig.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(upstream.folder, "pytorch-v2.9.0", filter=lambda member: None if "/.git/" in member.name else member)
        ignored = tarfile.TarInfo("pytorch-v2.9.0/kept.o")
        tar.addfile(ignored, io.BytesIO())
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apt-get").write_text(APT.format(archive=str(archive)))
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://elsewhere.example/")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "url.file:///nowhere/.insteadOf")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # a port that nobody listens on
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    package = SourcePackage(name="pytorch", version="2.9.0+dfsg-1", suite="trixie", sha256=sha256)
    return replace(upstream, pin=_with(upstream.pin, source_package=package))


def test_without_git_the_source_package_is_taken(packaged: Upstream, tmp_path: Path) -> None:
    folder = packaged.checkout(tmp_path / "checkout")
    assert "first();\n" in (folder / "torch" / "engine.cpp").read_text()
    first = topic_commits(Repository(folder, packaged.context.runner))[0]
    assert "source package pytorch 2.9.0+dfsg-1" in _git(folder, "log", "--format=%s", f"{first.commit}^")
    # What upstream's .gitignore names is part of the tree all the same.
    assert "kept.o" in _git(folder, "ls-files").split()


def test_a_source_package_of_another_hash_is_refused(packaged: Upstream, tmp_path: Path) -> None:
    package = packaged.pin.torch.source_package.model_copy(update={"sha256": "0" * 64})
    pin = _with(packaged.pin, source_package=package)
    with pytest.raises(FetchError) as caught:
        replace(packaged, pin=pin).checkout(tmp_path / "checkout")
    assert caught.value.expected == "sha256 " + "0" * 64
    assert not any((packaged.context.cache.root / "sha256").glob("*"))


def test_without_git_and_without_a_source_package(packaged: Upstream, tmp_path: Path) -> None:
    pin = _with(packaged.pin, source_package=None)
    with pytest.raises(FetchError, match="is not available"):
        replace(packaged, pin=pin).checkout(tmp_path / "checkout")


def test_the_list_of_sources_names_each_mirror_once() -> None:
    package = SourcePackage(name="pytorch", version="1", suite="trixie", sha256="0" * 64)
    lines = source_list(package, ["http://a/debian", "http://b/debian"]).splitlines()
    assert [line.split()[0] for line in lines] == ["deb-src", "deb-src"]
    assert [line.split()[-3:] for line in lines] == [
        ["http://a/debian", "trixie", "main"],
        ["http://b/debian", "trixie", "main"],
    ]


# Refresh.


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_edits_come_back_as_hunks_and_files(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    _edit(folder / "torch/engine.cpp", "first();\n", "first(1);\n")
    _edit(folder / "torch/engine.cpp", "line 20;\n", "line 20;\nthird();\n")
    _edit(folder / "torch/new.py", "new = 1", "new = 2")
    (folder / "torch/csrc/more.h").write_text("#pragma once\n")
    done = refresh("below", folder, upstream.topics, upstream.context)
    assert done.files == ("torch/csrc/more.h", "torch/new.py")
    assert done.hunks == ("torch/engine.cpp",)
    topic = upstream.tree.root / "patches/torch/below"
    assert (topic / "files/torch/new.py").read_text() == "new = 2\n"
    assert (topic / "files/torch/csrc/more.h").read_text() == "#pragma once\n"
    hunks = (topic / "hunks/2.9.patch").read_text()
    assert "+first(1);\n" in hunks
    assert "+third();\n" in hunks
    assert "second();" not in hunks  # that is the other topic's
    # As little context as has one place.
    assert hunks.count("\n line ") == 4
    # The topic as it is now gives the checkout as it is now, commits and all.
    again = upstream.checkout(tmp_path / "again")
    assert _git(again, "rev-parse", "HEAD") == _git(folder, "rev-parse", "HEAD")
    assert _git(folder, "status", "--porcelain") == ""
    assert refresh("below", folder, upstream.topics, upstream.context).changed == ()


def test_unproven_hunks_are_taken_on_request_and_come_back_as_proven_ones(upstream: Upstream, tmp_path: Path) -> None:
    hoped = HUNKS.replace("10", "20").replace("11", "21").replace("first", "hoped")
    upstream.tree.topic("hopeful", {"hunks/unproven.patch": hoped}, unproven='["2.9"]')
    assert "hoped();" not in (upstream.checkout(tmp_path / "without") / "torch/engine.cpp").read_text()
    folder = tmp_path / "with"
    checkout(upstream.pin, "torch", [topic.with_unproven("2.9") for topic in upstream.topics], folder, upstream.context)
    assert "hoped();\n" in (folder / "torch/engine.cpp").read_text()
    # Whoever has compiled them writes them back: from then on they are hunks like others.
    refresh("hopeful", folder, upstream.topics, upstream.context)
    assert "+hoped();\n" in (upstream.tree.root / "patches/torch/hopeful/hunks/2.9.patch").read_text()


def test_what_tests_and_builds_leave_is_no_edit(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    for path in ("torch/__pycache__/new.pyc", "build/CMakeCache.txt", "dist/torch.whl", "xla/setup.py"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).touch()
    assert refresh("below", folder, upstream.topics, upstream.context).files == ("torch/new.py",)
    assert "torch/new.py" in _git(folder, "ls-files").split()


def test_commits_on_top_are_edits_too(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    _edit(folder / "torch/engine.cpp", "line 40;\n", "line 40;\nlast();\n")
    _git(folder, "commit", "--all", "--quiet", "--message=work")
    refresh("torch/above", folder, upstream.topics, upstream.context)
    assert "+last();\n" in (upstream.tree.root / "patches/torch/above/hunks/2.9.patch").read_text()


def test_a_new_file_that_is_gone_goes_from_the_topic(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    (folder / "torch/new.py").unlink()
    done = refresh("below", folder, upstream.topics, upstream.context)
    assert "files/torch/new.py" in done.changed
    assert not (upstream.tree.root / "patches/torch/below/files").exists()


@pytest.mark.parametrize(
    ("edit", "topic", "complaint"),
    [
        (lambda folder: (folder / "torch/other.py").unlink(), "below", "is removed"),
        (lambda folder: (folder / "data.bin").write_bytes(b"\0"), "below", "cannot contain data.bin"),
        (lambda folder: _edit(folder / "torch/engine.cpp", "second();", "mine();"), "below", "do not fit torch/below"),
        (lambda folder: _edit(folder / "torch/engine.cpp", "first();", "mine();"), "above", "a line of torch/below"),
        (lambda folder: _edit(folder / "torch/engine.cpp", "first();\n", ""), "above", "a line of torch/below"),
        (lambda folder: _append(folder / "torch/new.py", "more = 1\n"), "above", "a line of torch/below"),
        (lambda _folder: None, "nobody", "nobody is not a topic of this checkout"),
    ],
)
def test_edits_that_a_topic_cannot_take(edit, topic: str, complaint: str, upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    before = _git(folder, "rev-parse", "HEAD"), [topic.source_hash("2.9") for topic in upstream.topics]
    edit(folder)
    with pytest.raises(CheckoutError, match=complaint):
        refresh(topic, folder, upstream.topics, upstream.context)
    assert before == (_git(folder, "rev-parse", "HEAD"), [topic.source_hash("2.9") for topic in upstream.topics])


def test_a_topic_that_changed_meanwhile_is_not_overwritten(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    (upstream.tree.root / "patches/torch/below/files/torch/new.py").write_text("new = 3\n")
    with pytest.raises(CheckoutError, match="not what this checkout was made with"):
        refresh("below", folder, upstream.topics, upstream.context)


def test_a_folder_that_is_no_checkout(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="not a checkout"):
        refresh("below", tmp_path, upstream.topics, upstream.context)
    with pytest.raises(CheckoutError, match="not a checkout of castoff"):
        refresh("below", upstream.folder, upstream.topics, upstream.context)


# Bringing a checkout up to date, as a source build does before it builds again.


def test_only_the_files_of_topics_that_changed_are_written_again(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    untouched = ("torch/engine.cpp", "torch/csrc/better.cpp")
    (folder / "torch/built.o").touch()
    upstream.tree.topic("top", {"files/torch/top.py": "top = 1\n"}, requires='["torch/above"]')
    update(upstream.pin, "torch", upstream.topics, folder, upstream.context)
    before = [(folder / path).stat().st_mtime_ns for path in untouched]
    (upstream.tree.root / "patches/torch/top/files/torch/top.py").write_text("top = 2\n")
    update(upstream.pin, "torch", upstream.topics, folder, upstream.context)
    assert (folder / "torch/top.py").read_text() == "top = 2\n"
    assert before == [(folder / path).stat().st_mtime_ns for path in untouched]
    assert (folder / "torch/built.o").is_file()
    assert _git(folder, "rev-parse", "HEAD") == _git(upstream.checkout(tmp_path / "fresh"), "rev-parse", "HEAD")


def test_an_edited_checkout_is_not_brought_up_to_date(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    _edit(folder / "torch/engine.cpp", "first();\n", "mine();\n")
    with pytest.raises(CheckoutError, match="cannot be brought up to date") as caught:
        update(upstream.pin, "torch", upstream.topics, folder, upstream.context)
    assert caught.value.found == "edits: torch/engine.cpp"
    _git(folder, "commit", "--all", "--quiet", "--message=work")
    with pytest.raises(CheckoutError, match="cannot be brought up to date"):
        update(upstream.pin, "torch", upstream.topics, folder, upstream.context)
    assert "mine();" in (folder / "torch/engine.cpp").read_text()


def test_a_topic_that_does_not_apply_leaves_the_checkout_as_it_was(upstream: Upstream, tmp_path: Path) -> None:
    folder = upstream.checkout(tmp_path / "checkout")
    before = _git(folder, "rev-parse", "HEAD")
    upstream.tree.topic("below", {"hunks/2.9.patch": HUNKS.replace(" line 11;", " line eleven;")})
    with pytest.raises(ApplyError):
        update(upstream.pin, "torch", upstream.topics, folder, upstream.context)
    assert _git(folder, "rev-parse", "HEAD") == before
    assert _git(folder, "status", "--porcelain", "--untracked-files=no") == ""
