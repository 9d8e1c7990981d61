import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import PATCH, Tree

from castoff.core.console import Console
from castoff.core.errors import ApplyError, MachineError, StageError, TopicError
from castoff.model.topics import load_topics
from castoff.upstream.pull_request import load_recipe, resolve_releases, stack_of, stage

ROOT = Path(__file__).resolve().parents[2]
OTHER = "first = 1\nsecond = 2\nthird = 3\nfourth = 4\nfifth = 5\n"
STAGE = """
title = "[core] Make third larger"
tests = ["test/test_third.py"]

[[replace]]
files = ["torch/*.py"]
old = "from torch import _castoff\\n"
new = ""

[[replace]]
files = ["torch/*.py"]
old = '''
if _castoff.enabled("third"):
    switched = True
'''
new = "switched = True\\n"
"""
TEST = """
import unittest
from pathlib import Path

text = (Path(__file__).resolve().parents[1] / "torch" / "other.py").read_text()


class TestThird(unittest.TestCase):
    def test_it(self):
        self.assertIn("third = 30", text)


unittest.main()
"""
THIRD = """from torch import _castoff
if _castoff.enabled("third"):
    switched = True
"""
CPP = """#include <torch/csrc/castoff/torch_version.h>
#if CASTOFF_TORCH_AT_LEAST(2, 9)
int   newer();
#else
int older(  );
#endif
"""


XLA_STAGE = """
title = "[runtime] Add the fourth"
tests = ["test/test_fourth.py"]
drop = ["torch_xla/_unwanted.py"]

[[replace]]
files = ["torch_xla/__init__.py"]
old = "first = 1\\n"
new = "first = 1\\nfrom   . import _fourth\\n"
"""
XLA_TEST = """
import os, unittest
from pathlib import Path

tree = Path(__file__).resolve().parents[1] / "torch_xla"


class TestFourth(unittest.TestCase):

  def test_it(self):
    self.assertEqual(os.environ["PJRT_DEVICE"], "CPU")
    self.assertTrue((tree / "_fourth.py").exists())
    self.assertIn("import _fourth", (tree / "__init__.py").read_text())


unittest.main()
"""


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of torch 2.9, as git has it."""
    files = {
        "torch/__init__.py": "",
        "torch/other.py": OTHER,
        "test/test_old.py": "",
        "version.txt": "2.9.0a0\n",
        ".clang-format": "BasedOnStyle: Google\nIndentWidth: 6\n",
        "pyproject.toml": '[tool.ruff]\nline-length = 88\n[tool.ruff.lint]\nselect = ["F"]\n',
    }
    return _repository(tmp_path, "checkout", files, monkeypatch)


def _repository(home: Path, folder_name: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home / folder_name
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "A Maintainer")
    git(folder, "config", "user.email", "maintainer@example.org")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "upstream's tree")
    return folder


@pytest.fixture
def xla_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of torch_xla 2.9, likewise."""
    files = {
        "torch_xla/__init__.py": "first = 1\nsecond   = 2\n",
        "test/test_old.py": "",
        "setup.py": "version = os.getenv('TORCH_XLA_VERSION', '2.9.0')\n",
        ".style.yapf": "[style]\nbased_on_style = google\nindent_width = 2\n",
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n',
    }
    return _repository(tmp_path, "xla", files, monkeypatch)


@pytest.fixture
def topic(tree: Tree) -> Path:
    """A topic that can be staged."""
    tree.topic("kill-switch", {"files/torch/_castoff.py": "def enabled(topic): return True\n"})
    return tree.topic(
        "third",
        {
            "files/torch/_third.py": THIRD,
            "files/torch/csrc/third.h": CPP,
            "hunks/2.9.patch": PATCH,
            "upstream/stage.toml": STAGE,
            "upstream/message.md": "It was too small.\n",
            "upstream/measured.md": "It is 30 now.\n",
            "upstream/tree/test/test_third.py": TEST,
        },
        kind='"waiting"',
        upstream='["https://github.com/pytorch/pytorch/issues/3"]',
        requires='["torch/kill-switch"]',
    )


def _python(folder: Path, release: str = "2.9.0", site: Path | None = None) -> Path:
    """Make the Python of an environment that says it has torch and torch_xla of a release."""
    site = site or folder / f"site-{release}"
    for project in ("torch", "torch_xla"):
        info = site / f"{project}-{release}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {release}\n")
    python = folder / f"python-{release}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def _stage(tree: Tree, checkout: Path | str, name: str = "third", **options: object) -> dict[str, object]:
    out = io.StringIO()
    arguments: dict[str, object] = {
        "out": tree.root.parent / "staged",
        "branch": None,
        "stock": None,
        "compile_cpp": False,
        "push": None,
        **options,
    }
    if "python" not in arguments:
        arguments["python"] = _python(tree.root.parent)
    console = Console(json_lines=True, out=out, err=io.StringIO())
    stage(name, onto=str(checkout), console=console, root=tree.root, **arguments)  # type: ignore[arg-type]
    return json.loads(out.getvalue().splitlines()[-1])


def test_a_topic_becomes_a_branch_patches_and_a_text(tree: Tree, topic: Path, checkout: Path, tmp_path: Path) -> None:
    result = _stage(tree, checkout)
    assert git(checkout, "log", "--format=%an %s", "main..third") == "A Maintainer [core] Make third larger\n"
    assert "issues/3" in git(checkout, "log", "--format=%b", "main..third")
    assert git(checkout, "branch", "--show-current") == "main\n"
    assert git(checkout, "status", "--short") == ""
    assert git(checkout, "show", "third:torch/_third.py") == "switched = True\n"
    assert git(checkout, "show", "third:torch/csrc/third.h") == "int newer();\n"
    assert "third = 30" in git(checkout, "show", "third:torch/other.py")
    changed = git(checkout, "diff", "--name-only", "main", "third").split()
    assert changed == ["test/test_third.py", "torch/_third.py", "torch/csrc/third.h", "torch/other.py"]
    staged = tmp_path / "staged"
    patch, text = sorted(staged.iterdir())
    assert patch.name == "0001-core-Make-third-larger.patch"
    assert [str(patch), str(text)] == result["files"]
    assert result["pushed"] is None
    words = text.read_text()
    assert "$ python test/test_third.py\nRan 1 test in" in words
    for expected in ("It was too small.", "It is 30 now.", "issues/3", "not on a build of the branch"):
        assert expected in words
    assert "castoff" not in (words + patch.read_text()).lower()
    git(checkout, "checkout", "--quiet", "-b", "again", "main")
    git(checkout, "am", "--quiet", "--keep-non-patch", str(patch))
    assert git(checkout, "log", "-1", "--format=%s") == "[core] Make third larger\n"
    assert git(checkout, "diff", "again", "third") == ""


def _fourth(tree: Tree, stage: str) -> None:
    """Add a topic of torch_xla with a recipe."""
    tree.topic(
        "fourth",
        {
            "files/torch_xla/_fourth.py": "def fourth():\n    return   4\n",
            "files/torch_xla/_unwanted.py": "",
            "upstream/stage.toml": stage,
            "upstream/message.md": "There were three.\n",
            "upstream/measured.md": "There are four.\n",
            "upstream/tree/test/test_fourth.py": XLA_TEST,
        },
        "torch_xla",
        kind='"waiting"',
        upstream='["https://github.com/pytorch/xla/issues/4"]',
    )


def test_a_topic_of_torch_xla_has_the_style_of_its_tree(tree: Tree, xla_checkout: Path, tmp_path: Path) -> None:
    _fourth(tree, XLA_STAGE)
    _stage(tree, xla_checkout, "fourth")
    assert git(xla_checkout, "show", "fourth:torch_xla/_fourth.py") == "def fourth():\n  return 4\n"
    # Of a file of upstream's own, only the lines that are new have it.
    shown = git(xla_checkout, "show", "fourth:torch_xla/__init__.py")
    assert shown == "first = 1\nfrom . import _fourth\nsecond   = 2\n"
    assert "_unwanted" not in git(xla_checkout, "ls-tree", "-r", "--name-only", "fourth")
    text = (tmp_path / "staged" / "pull-request.md").read_text()
    assert "On the wheel of torch_xla 2.9.0" in text
    assert "$ PJRT_DEVICE=CPU python test/test_fourth.py\nRan 1 test in" in text
    assert "3 Python files have the format of the tree's .style.yapf" in text


def test_cpp_that_cannot_be_compiled_here_says_so_first(tree: Tree, xla_checkout: Path, tmp_path: Path) -> None:
    kernels = xla_checkout / "torch_xla/csrc/kernels.cpp"
    kernels.parent.mkdir()
    kernels.write_text('#include "of_its_own_build.h"\nint first();\n')
    git(xla_checkout, "add", "--all")
    git(xla_checkout, "commit", "--quiet", "--message", "kernels")
    replace = '[[replace]]\nfiles = ["torch_xla/csrc/kernels.cpp"]\nold = "first();"\nnew = "fourth();"\n'
    head, tail = XLA_STAGE.split("\n\n", 1)
    _fourth(tree, f'{head}\nnot_compiled = "it has no headers"\n{replace}\n{tail}')
    _stage(tree, xla_checkout, "fourth", compile_cpp=True)
    assert "int fourth();" in git(xla_checkout, "show", "fourth:torch_xla/csrc/kernels.cpp")
    caveat = "Not compiled here: it has no headers.\n\n"
    message = git(xla_checkout, "log", "-1", "--format=%b", "fourth")
    text = (tmp_path / "staged" / "pull-request.md").read_text()
    assert message.startswith(caveat)
    assert text.startswith(f"{caveat}# [runtime] Add the fourth\n")
    assert "that has this behaviour by other code" in text


def test_on_a_machine_of_ci_the_tests_run_as_on_any(
    tree: Tree, topic: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")  # upstream's tests would ask for the packages of upstream's CI
    test = topic / "upstream/tree/test/test_third.py"
    test.write_text(TEST.replace("import unittest\n", "import os\nimport unittest\n\nassert 'CI' not in os.environ\n"))
    assert _stage(tree, checkout)["branch"] == "third"


def test_what_fails_is_not_staged(tree: Tree, topic: Path, checkout: Path, tmp_path: Path) -> None:
    test = topic / "upstream/tree/test/test_third.py"
    test.write_text(TEST.replace("third = 30", "third = 31"))
    with pytest.raises(StageError, match="do not pass") as caught:
        _stage(tree, checkout)
    assert "FAILED (failures=1)" in caught.value.found
    test.write_text("")  # no test at all proves nothing
    with pytest.raises(StageError, match="do not pass"):
        _stage(tree, checkout)
    assert git(checkout, "branch", "--format=%(refname:short)").split() == ["main"]
    assert not (tmp_path / "staged").exists()


def test_tests_that_pass_without_the_topic_prove_nothing(tree: Tree, topic: Path, checkout: Path) -> None:
    with pytest.raises(StageError, match="prove nothing"):
        _stage(tree, checkout, stock=Path(sys.executable))


def test_a_name_of_castoff_is_found(tree: Tree, topic: Path, checkout: Path) -> None:
    source = topic / "files/torch/_third.py"
    source.write_text(source.read_text() + "# as castoff has it\n")
    with pytest.raises(StageError, match="has castoff's name in it") as caught:
        _stage(tree, checkout)
    assert caught.value.found == "+# as castoff has it"


def test_a_replacement_that_finds_nothing_is_out_of_date(tree: Tree, topic: Path, checkout: Path) -> None:
    (topic / "files/torch/_third.py").write_text("from torch import _castoff\n")
    with pytest.raises(TopicError, match="does not fit the topic") as caught:
        _stage(tree, checkout)
    assert "switched" in caught.value.expected


def test_upstreams_linter_is_heard(tree: Tree, topic: Path, checkout: Path) -> None:
    source = topic / "files/torch/_third.py"
    source.write_text(source.read_text() + "print(nowhere)\n")
    with pytest.raises(StageError, match="linter") as caught:
        _stage(tree, checkout)
    assert "torch/_third.py: F821" in caught.value.found


def test_what_the_linter_found_before_is_not_ours(tree: Tree, topic: Path, checkout: Path) -> None:
    (checkout / "torch" / "other.py").write_text(f"{OTHER}print(nowhere)\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "sloppy")
    _stage(tree, checkout)


def test_a_conflict_says_where(tree: Tree, topic: Path, checkout: Path) -> None:
    (checkout / "torch" / "other.py").write_text(OTHER.replace("fourth = 4", "fourth = 5"))
    git(checkout, "commit", "--quiet", "--all", "--message", "moved on")
    with pytest.raises(ApplyError) as caught:
        _stage(tree, checkout)
    assert "torch/other.py: conflict" in caught.value.found


def test_cpp_must_compile(tree: Tree, topic: Path, checkout: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "torch" / "include").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("class _C: _GLIBCXX_USE_CXX11_ABI = True\n")
    python = _python(tmp_path, site=site)
    source = topic / "files/torch/csrc/third.cpp"
    source.write_text("#include <torch/csrc/third.h>\nint newer() { return 30; }\n")
    _stage(tree, checkout, python=python, compile_cpp=True)
    source.write_text("#include <torch/csrc/third.h>\nint newer() { return nothing; }\n")
    with pytest.raises(StageError, match=r"third\.cpp does not compile"):
        _stage(tree, checkout, python=python, compile_cpp=True, branch="other")


def test_a_stack_of_topics(tree: Tree, topic: Path, checkout: Path, tmp_path: Path) -> None:
    below = tree.root / "patches/torch/below"
    shutil.copytree(topic / "upstream", below / "upstream")
    tree.topic("below", {"files/torch/below.py": ""}, kind='"waiting"')
    (below / "upstream/stage.toml").write_text('title = "[core] Below"\ntests = ["test/test_below.py"]\n')
    (below / "upstream/tree/test/test_third.py").rename(below / "upstream/tree/test/test_below.py")
    (below / "upstream/tree/test/test_below.py").write_text(TEST.replace("third = 30", "third = "))
    toml = topic / "topic.toml"
    toml.write_text(toml.read_text().replace('"torch/kill-switch"]', '"torch/kill-switch", "torch/below"]'))
    _stage(tree, checkout)
    assert git(checkout, "log", "--format=%s", "main..third").splitlines() == [
        "[core] Make third larger",
        "[core] Below",
    ]
    names = sorted(path.name for path in (tmp_path / "staged").glob("*.md"))
    assert names == ["pull-request-1-below.md", "pull-request-2-third.md"]


def test_a_branch_is_not_overwritten_and_pushing_is_asked_for(
    tree: Tree, topic: Path, checkout: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "--quiet", "--bare", "remote")
    git(checkout, "remote", "add", "origin", str(tmp_path / "remote"))
    _stage(tree, checkout)
    assert git(tmp_path / "remote", "branch") == ""
    with pytest.raises(StageError, match="already has a branch third"):
        _stage(tree, checkout)
    _stage(tree, checkout, branch="mine", push="origin")
    assert git(tmp_path / "remote", "branch").split() == ["mine"]


def test_onto_a_checkout_of_castoffs_own(tree: Tree, topic: Path, checkout: Path) -> None:
    """Its commits are ignored."""
    trailers = f"Castoff-Topic: torch/third\nCastoff-Pin: 2.9\nCastoff-State: {'a' * 64}"
    (checkout / "torch" / "_third.py").touch()
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", f"torch/third: a title\n\n{trailers}\n")
    _stage(tree, checkout)
    assert git(checkout, "merge-base", "main", "third") == git(checkout, "rev-parse", "main^")


def test_who_and_where(tree: Tree, topic: Path, checkout: Path, tmp_path: Path) -> None:
    git(checkout, "config", "--unset", "user.email")
    with pytest.raises(StageError, match="no user name"):
        _stage(tree, checkout)
    with pytest.raises(StageError, match="not a checkout of torch"):
        _stage(tree, tmp_path)
    (checkout / "version.txt").write_text("?")
    git(checkout, "config", "user.email", "maintainer@example.org")
    git(checkout, "commit", "--quiet", "--all", "--message", "no version")
    with pytest.raises(StageError, match="its release"):
        _stage(tree, checkout)


def test_without_wheels_of_that_release_an_environment_must_be_given(tree: Tree, topic: Path, checkout: Path) -> None:
    with pytest.raises(MachineError, match="there are no wheels in") as caught:
        _stage(tree, checkout, python=None)
    assert "dist/2.9-cpu" in caught.value.summary
    assert caught.value.next_step.endswith("./build.sh --target cpu --pin 2.9")


def test_an_environment_of_another_release_is_refused(tree: Tree, topic: Path, checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="has another torch than the tree") as caught:
        _stage(tree, checkout, python=_python(tmp_path, "2.6.0"))
    assert (caught.value.expected, caught.value.found) == ("torch 2.9, as the tree says (2.9.0)", "2.6.0")
    assert caught.value.next_step.endswith("castoff env patched --pin 2.9")


def test_what_a_recipe_needs(tree: Tree, topic: Path, checkout: Path) -> None:
    (topic / "upstream" / "measured.md").unlink()
    with pytest.raises(TopicError, match="has no recipe for upstream"):
        _stage(tree, checkout)


@pytest.mark.parametrize(("version", "kept"), [((2, 6), "a\nc\ng\n"), ((2, 9), "b\nd\ne\nh\n")])
def test_choices_between_releases(version: tuple[int, int], kept: str) -> None:
    text = (
        "#if !CASTOFF_TORCH_AT_LEAST(2, 9)\na\n#else\nb\n#endif\n"
        "#if CASTOFF_TORCH_AT_LEAST(2, 1)\n#if CASTOFF_TORCH_AT_LEAST(2, 7)\nd\n#else\nc\n#endif\n#else\nx\n#endif\n"
        "#if CASTOFF_TORCH_AT_LEAST(2, 9)\ne\n#if WIN32\nh\n#else\nh\n#endif\n#else\ng\n#endif\n"
    )
    expected = kept.replace("h\n", "#if WIN32\nh\n#else\nh\n#endif\n")
    assert resolve_releases(text, version) == expected
    with pytest.raises(ValueError, match="defined"):
        resolve_releases("#if defined(X) && CASTOFF_TORCH_AT_LEAST(2, 9)\n#endif\n", version)


def test_every_recipe_of_the_tree_can_be_read() -> None:
    topics = load_topics(ROOT / "patches")
    recipes = [load_recipe(topic) for topic in topics if (topic.folder / "upstream").is_dir()]
    assert {recipe.topic.name for recipe in recipes} >= {"grad-dtype", "data-setter", "record-implicit-casts"}
    (setter,) = [topic for topic in topics if topic.name == "data-setter"]
    assert [topic.name for topic in stack_of(setter, topics)] == ["grad-dtype", "data-setter"]
    (recorder,) = [topic for topic in topics if topic.name == "record-implicit-casts"]
    assert [topic.name for topic in stack_of(recorder, topics)] == ["grad-dtype", "record-implicit-casts"]
