"""The last step of a source build, on made-up wheels in the place of those that hours of compiling would leave."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from made_up import PYTHON, Tree, make_wheel
from typer.testing import CliRunner

from castoff.cli.main import app
from castoff.core.console import Console
from castoff.core.errors import BuildError
from castoff.source.assemble import assemble

CPP = (
    "#include <torch/answer.h>\n"
    'extern "C" __attribute__((visibility("default"))) const char* commit() { return CASTOFF_TORCH_GIT_VERSION; }\n'
)


def _commit(folder: Path) -> str:
    git = ["git", "-c", "user.name=u", "-c", "user.email=u@localhost", "-C", folder]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", f"--message={folder}"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def made(full_tree: Tree, tmp_path: Path) -> tuple[Path, Path]:
    """The wheels, each in the folder ``dist`` of its checkout; a topic of each project has C++."""
    files = {"files/torch_xla/csrc/one.cpp": CPP, "files/torch_xla/_one.py": "one = 1\n"}
    overlay = '{"2.9" = {interpose = [], exports = ["commit"]}}'
    full_tree.topic("cpp", files, "torch_xla", overlay=overlay)
    wheels = []
    for project, checkout in (("torch", tmp_path / "pytorch"), ("torch_xla", tmp_path / "pytorch" / "xla")):
        members = {**full_tree.files[project], f"{project}/version.py": b"__version__ = '2.9.0+castoff.3'\n"}
        checkout.mkdir()
        wheels.append(make_wheel(checkout / "dist", project, "2.9.0+castoff.3", members))
    return wheels[0], wheels[1]


@pytest.mark.parametrize("hunks", [True, False])
def test_upstreams_wheels_become_an_output_folder(
    hunks: bool, made: tuple[Path, Path], full_tree: Tree, console: Console, tmp_path: Path
) -> None:
    if hunks:  # torch's C++ is in libtorch_cpu then
        hunk = (
            '--- a/build_variables.bzl\n+++ b/build_variables.bzl\n@@ -1,1 +1,2 @@\n [\n+    "torch/csrc/better.cpp",\n'
        )
        patch = full_tree.root / "patches/torch/answer/hunks/2.9.patch"
        patch.write_text(f"{patch.read_text()}diff --git a/build_variables.bzl b/build_variables.bzl\n{hunk}")
    head = _commit(tmp_path / "pytorch")
    _commit(tmp_path / "pytorch" / "xla")
    folder = assemble("2.9", "tpu", PYTHON, wheels=made, out=tmp_path / "dist", console=console, root=full_tree.root)
    assert folder == tmp_path / "dist" / "2.9-tpu"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["mode"] == "source"
    assert manifest["verified"]["installed"]
    assert manifest["pin"]["torch"] == head
    assert list(manifest["overlays"]) == (["torch_xla"] if hunks else ["torch", "torch_xla"])
    assert manifest["verified"]["interpositions"] == ({} if hunks else {"_ZN5torch6answerEv": 1})
    lines = (folder / "constraints.txt").read_text().split()
    assert lines == ["torch==2.9.0+castoff.3", "torch_xla==2.9.0+castoff.3", "libtpu==0.0.21"]
    assert len(list(folder.glob("*.whl"))) == 3
    torch = zipfile.ZipFile(folder / made[0].name)
    assert ("torch/lib/libcastoff_torch.so" in torch.namelist()) != hunks
    torch_xla = zipfile.ZipFile(folder / made[1].name)
    library = tmp_path / "libcastoff_torch_xla.so"
    library.write_bytes(torch_xla.read("torch_xla/lib/libcastoff_torch_xla.so"))
    # It asks for the commit that was built, which is not upstream's: the topics are on top.
    assert head.encode() in library.read_bytes()
    assert b"torch_xla/lib/libcastoff_torch_xla.so" in torch_xla.read("torch_xla-2.9.0+castoff.3.dist-info/RECORD")


def test_a_wheel_that_is_not_there(made: tuple[Path, Path], full_tree: Tree, console: Console, tmp_path: Path) -> None:
    made[1].rename(made[1].with_name("torch_xla-2.9.0-other.whl"))
    with pytest.raises(BuildError) as caught:
        assemble("2.9", "cpu", PYTHON, wheels=made, out=tmp_path / "dist", console=console, root=full_tree.root)
    assert caught.value.expected == str(made[1])
    assert "torch_xla-2.9.0-other.whl" in caught.value.found
    assert not (tmp_path / "dist").exists()


def test_the_command_line_that_the_plan_has(tmp_path: Path) -> None:
    wheels = (tmp_path / name / "dist" / f"{name}.whl" for name in ("torch", "torch_xla"))
    words = ["assemble", "--pin", "2.9", "--target", "cpu", "--python", PYTHON, *wheels, "--out", tmp_path / "dist"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == BuildError.exit_code
