"""Fixtures: a quiet console, and made-up trees and wheels."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import pytest
from made_up import PATCH, SOURCES, TORCH_COMMIT, TORCH_INIT, TORCH_XLA_COMMIT, Tree, compile_library

from castoff.builder.fetch import file_sha256
from castoff.core.cache import Cache
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.runner import Runner


@pytest.fixture(autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of commands that fail are kept: among the files of the tests, which pytest removes."""
    folder = str(tmp_path_factory.getbasetemp())
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)


@pytest.fixture
def log() -> io.StringIO:
    """What the console says."""
    return io.StringIO()


@pytest.fixture
def console(log: io.StringIO) -> Console:
    return Console(out=log, err=log)


@pytest.fixture
def context(tmp_path: Path, console: Console) -> Context:
    return Context(Cache(tmp_path / "cache", console), Runner(tmp_path / "logs", console), console)


@pytest.fixture
def runner(context: Context) -> Runner:
    return context.runner


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Made-up libraries of torch: ask() of libtorch_cpu.so calls torch::answer() through a slot."""
    folder = tmp_path_factory.mktemp("libraries")
    return {
        name: compile_library(folder / name, source, *options).read_bytes()
        for name, (source, options) in SOURCES.items()
    }


@pytest.fixture
def tree(tmp_path: Path, libraries: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree whose pip finds the made-up wheels and nothing else."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [castoff.3] - 2026-11-21\n\n## [castoff.2] - 2026-01-01\n")
    result = Tree(root, tmp_path / "wheels")
    result.files["torch"] = {
        "torch/__init__.py": TORCH_INIT.encode(),
        "torch/version.py": f"__version__ = '2.9.0+cu128'\ngit_version = '{TORCH_COMMIT}'\n".encode(),
        "torch/other.py": b"first = 1\nsecond = 2\nthird = 3\nfourth = 4\nfifth = 5\n",
        "torch/include/torch/answer.h": b"#pragma once\nnamespace torch { int answer(); }\n",
        "torch/include/torch/library.h": b"#pragma once\n",
        "torch/include/ATen/core/Tensor.h": b"#pragma once\n",
        **{f"torch/lib/{name}": data for name, data in libraries.items()},
    }
    result.files["torch_xla"] = {
        "torch_xla/__init__.py": b"from torch_xla.version import __version__\n",
        "torch_xla/version.py": f"__version__ = '2.9.0'\n__xla_gitrev__ = '{TORCH_XLA_COMMIT}'\n".encode(),
    }
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(result.wheels))
    monkeypatch.setenv("CASTOFF_CACHE", str(tmp_path / "cache"))
    return result


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests have compiled, by the hash of its inputs."""
    folder = tmp_path_factory.mktemp("compiled")
    for kind in ("objects", "overlays"):
        (folder / kind).mkdir()
    return folder


@pytest.fixture
def full_tree(tree: Tree) -> Tree:
    """A tree with a topic of every part: new Python, a hunk, C++ that interposes."""
    tree.topic(
        "answer",
        {
            "files/torch/_answer.py": "answer = 42\n",
            "files/torch/csrc/better.h": "#pragma once\nint better();\n",
            "files/torch/csrc/better.cpp": "#include <torch/csrc/better.h>\nint better() { return 42; }\n",
            "overlay/interpose.cpp": "#include <torch/answer.h>\n#include <torch/csrc/better.h>\n"
            'namespace torch { __attribute__((visibility("default"))) int answer() { return better(); } }\n'
            'extern "C" __attribute__((visibility("default"))) const char* castoff_commit() {\n'
            "  return CASTOFF_TORCH_GIT_VERSION;\n}\n",
            "hunks/2.9.patch": PATCH,
        },
        overlay='{exports = ["castoff_commit"], "2.9" = {interpose = ["_ZN5torch6answerEv"]}}',
    )
    tree.topic("xla", {"files/torch_xla/_new.py": "new = True\n"}, "torch_xla", requires='["torch/answer"]')
    tree.finish()
    return tree


@pytest.fixture
def fetched_tree(full_tree: Tree, tmp_path: Path) -> Tree:
    """The same with its wheels in the cache: pip takes a second for each."""
    for wheel in full_tree.wheels.glob("torch*.whl"):
        folder = tmp_path / "cache" / "sha256" / file_sha256(wheel)
        folder.mkdir(parents=True)
        shutil.copyfile(wheel, folder / wheel.name)
    return full_tree


@pytest.fixture
def warm_tree(fetched_tree: Tree, tmp_path: Path, compiled: Path) -> Tree:
    """The same with what another test has compiled of it."""
    for kind in compiled.iterdir():
        (tmp_path / "cache" / kind.name).symlink_to(kind)
    return fetched_tree
