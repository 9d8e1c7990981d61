"""Recipes for upstream: whether they fit their topics, and, staged onto a made-up tree that has the texts they replace,
those whose C++ needs torch_xla's own build."""

import dataclasses
import fnmatch
import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from castoff.core.console import Console
from castoff.model.topics import load_topics
from castoff.upstream import pull_request as staging
from castoff.upstream.pull_request import Recipe, load_recipe, stage, written_otherwise

ROOT = Path(__file__).resolve().parents[2]
ALL_RECIPES = [load_recipe(topic) for topic in load_topics(ROOT / "patches") if (topic.folder / "upstream").is_dir()]
RECIPES = {recipe.topic.name: recipe for recipe in ALL_RECIPES if recipe.not_compiled}
STYLE = {
    ".style.yapf": "[style]\nbased_on_style = google\nindent_width = 2\n",
    ".clang-format": "BasedOnStyle: Google\n",
}
VERSION = {"setup.py": "version = os.getenv('TORCH_XLA_VERSION', '2.9.0')\n", "torch_xla/__init__.py": ""}

# What the lowerings of wide-reductions use of XLA's and torch_xla's headers.
HELPERS = """\
#pragma once
#include <cstdint>
#include <optional>
#include <vector>
namespace at { enum class ScalarType { Float }; }
namespace absl {
using std::optional;
template <class T> struct Span { Span(const std::vector<int64_t>&); };
}
namespace xla {
struct XlaOp {};
enum PrimitiveType { F32, F16, BF16 };
XlaOp ConvertElementType(XlaOp, PrimitiveType);
}
namespace torch_xla {
enum class ReductionMode { kMean };
struct XlaHelpers { static xla::PrimitiveType TypeOfXlaOp(xla::XlaOp); };
xla::XlaOp BuildMean(xla::XlaOp, absl::Span<const int64_t>, bool);
xla::XlaOp BuildSoftmax(xla::XlaOp, int64_t);
xla::XlaOp CastToScalarType(xla::XlaOp, const absl::optional<at::ScalarType>&);
"""
INCLUDE = '#include "torch_xla/csrc/helpers.h"\n'
LOWER = """\
xla::XlaOp Lower(xla::XlaOp input, const std::vector<int64_t>& dimensions, int64_t dim, bool keep_reduced_dimensions,
                 const absl::optional<at::ScalarType>& dtype) {
"""


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def made_up(texts: list[str]) -> str:
    """Upstream's file that has some texts: C++ functions in full, of which a text is the head or the body."""
    includes = [text for text in texts if text.startswith("#include")]
    heads = [f"{text}  return {{}};\n}}\n" for text in texts if "{\n" in text]
    bodies = [f"{LOWER}{text}}}\n" for text in texts if text.startswith("  xla::")]
    others = [text for text in texts if text.startswith(("  -", "at::", '        "'))]
    assert len(texts) == len(includes) + len(heads) + len(bodies) + len(others)
    if not heads and not bodies:
        return "".join(includes + others)
    return "".join([*(includes or [INCLUDE]), "\nnamespace torch_xla {\n", *heads, *bodies, "}\n"])


@pytest.fixture
def staged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout of a recipe's branch."""
    recipe, tree = RECIPES[request.param], tmp_path / "xla"
    texts: dict[str, list[str]] = {}
    for one in recipe.replace:
        texts.setdefault(one.files[0], []).append(one.old)
    for path, text in {**STYLE, **VERSION, **{path: made_up(olds) for path, olds in texts.items()}}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    git(tree, "init", "--quiet", "--initial-branch=main")
    git(tree, "config", "user.name", "A Maintainer")
    git(tree, "config", "user.email", "maintainer@example.org")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "upstream's tree")
    # They need torch_xla: ci/test.sh --all runs them, on the patched wheels.
    monkeypatch.setattr(
        staging, "run_test", lambda path, *_: staging.TestRun(f"python {path}", "Ran 1 test in 1 s", True)
    )
    site = tmp_path / "site" / "torch_xla-2.9.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_xla\nVersion: 2.9.0\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    console = Console(json_lines=True, out=io.StringIO(), err=io.StringIO())
    out = tmp_path / "staged"
    options = {"out": out, "branch": None, "stock": None, "compile_cpp": True, "push": None, "root": ROOT}
    stage(request.param, onto=str(tree), python=python, console=console, **options)
    git(tree, "checkout", "--quiet", request.param)
    return tree


@pytest.mark.parametrize("version", [(2, 6), (2, 9)])
@pytest.mark.parametrize("recipe", ALL_RECIPES, ids=lambda recipe: recipe.topic.name)
def test_a_recipe_replaces_texts_that_its_topic_has(recipe: Recipe, version: tuple[int, int]) -> None:
    files = recipe.topic.folder / "files"
    paths = (path for path in files.rglob("*") if path.suffix in {".py", ".pyi", ".h", ".cpp"})
    texts = {path.relative_to(files).as_posix(): path.read_text() for path in paths}
    of_its_files = tuple(one for one in recipe.replace if any(fnmatch.filter(texts, pattern) for pattern in one.files))
    new = written_otherwise(dataclasses.replace(recipe, replace=of_its_files), texts, version)
    kept = [path for path in new if not any(fnmatch.fnmatchcase(path, pattern) for pattern in recipe.drop)]
    assert [path for path in kept if "castoff" in new[path].lower()] == []


@pytest.mark.parametrize("staged", RECIPES, indirect=True)
def test_upstream_gets_the_lowerings_and_nothing_else(staged: Path, request: pytest.FixtureRequest) -> None:
    recipe = RECIPES[request.node.callspec.params["staged"]]
    changed = git(staged, "diff", "--name-only", "main").split()
    new = git(staged, "diff", "--name-only", "--diff-filter=A", "main").split()
    extra = recipe.topic.folder / "upstream" / "tree"
    assert new == sorted(str(path.relative_to(extra)) for path in extra.rglob("*") if path.suffix in (".h", ".py"))
    assert set(changed) - set(new) == {path for one in recipe.replace for path in one.files}
    for one in recipe.replace:
        # The format is that of the tree: only white space may differ.
        text = (staged / one.files[0]).read_text()
        assert "".join(one.new.split()) in "".join(text.split())
    assert git(staged, "log", "-1", "--format=%b").startswith(f"Not compiled here: {recipe.not_compiled}.\n")


@pytest.mark.parametrize("staged", ["wide-reductions"], indirect=True)
def test_the_calls_of_wide_h_are_cpp(staged: Path, tmp_path: Path) -> None:
    """Its syntax and types, by headers that stand for XLA's and torch_xla's."""
    recipe, include = RECIPES["wide-reductions"], tmp_path / "include"
    shutil.copytree(staged / "torch_xla", include / "torch_xla")
    (include / "torch_xla/csrc/helpers.h").write_text(f"{HELPERS}}}\n")
    for name in ("convert_ops", "shape_helper", "tensor_util"):
        (include / f"torch_xla/csrc/{name}.h").write_text('#include "torch_xla/csrc/helpers.h"\n')
    sources = {path for one in recipe.replace for path in one.files if path.endswith(".cpp")}
    assert len(sources) == 6
    for path in sources:
        command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wno-unused", "-Werror", f"-I{include}", path]
        done = subprocess.run(command, cwd=staged, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
