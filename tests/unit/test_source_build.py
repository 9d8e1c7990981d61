"""ci/source_build.sh: which commands it gives, in order, with stand-ins for programs that run for hours."""

import subprocess
import sys
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from castoff.core.places import ROOT

STAND_IN = """\
#!{python} -I
import os, pathlib, re, shutil, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
line, here, work = " ".join(words), pathlib.Path.cwd(), pathlib.Path(os.environ["WORK"])
answers = {{
    "rev-parse": f"commit-of-{{line.split()[1].rpartition('/')[2]}}" if name == "git" else "",
    "torch.__file__": "/site/torch/include",
    "version_info": "3.11",
    "castoff.version": "2.6.0+castoff.3",
}}
for asked, answer in answers.items():
    if asked in line:
        sys.exit(print(answer))
if words[0] == "checkout":
    (pathlib.Path(words[-1]) / "torch_xla/csrc/castoff").mkdir(parents=True)
    (pathlib.Path(words[-1]) / "torch_xla/csrc/castoff/one.cpp").touch()
if words[0] == "venv":
    (work / "environment/bin").mkdir(parents=True)
    shutil.copy(__file__, work / "environment/bin/python")
if "bdist_wheel" in words:
    (here / "dist").mkdir()
    (here / f"dist/torch{{'_xla' * (here.name == 'xla')}}-2.6.0+castoff.3-cp311.whl").touch()
    own = r"(USE|BUILD|BUNDLE|PYTORCH|TORCH_XLA|CXX|_GLIBCXX|CMAKE|MAX|BAZEL|BLAS|TPUVM|HERMETIC|GIT|VERSIONED)"
    line = "".join(f"\\n  {{key}}={{value}}" for key, value in sorted(os.environ.items()) if re.match(own, key))
    line = f"setup.py bdist_wheel with{{line}}"
line = line.replace(str(work), "WORK").replace(os.environ["TREE"], "TREE")
with open(work / "log", "a") as log:
    print(f"{{name}} {{line}}", file=log)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Make a tree with the script in it, and programs that only write down how they are called."""
    tree, programs = tmp_path / "tree", tmp_path / "bin"
    stand_ins = [tree / ".venv" / "bin" / name for name in ("castoff", "uv", "python")]
    stand_ins += [programs / name for name in ("git", "g++", "patch", "bazel", "python3.11")]
    for path in stand_ins:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(python=sys.executable))
        path.chmod(0o755)
    for name in ("awk", "bash", "cat", "dirname", "env", "mkdir", "sed"):
        (programs / name).symlink_to(Path("/usr/bin") / name)
    (programs / "nproc").write_text("#!/bin/sh\necho 1\n")
    (programs / "nproc").chmod(0o755)
    (tree / "ci").mkdir()
    (tree / "ci" / "source_build.sh").write_text((ROOT / "ci" / "source_build.sh").read_text())
    return {"PATH": str(programs), "WORK": str(tmp_path / "work"), "TREE": str(tree)}


def _run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", f"{environment['TREE']}/ci/source_build.sh", environment["WORK"]]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_commands(environment: dict[str, str]) -> None:
    done = _run(environment)
    assert done.returncode == 0, done.stderr
    assert Path(environment["WORK"], "constraints.txt").read_text() == "cmake<4\nsetuptools<80\n"
    assert_expected_inline(
        Path(environment["WORK"], "log").read_text(),
        """\
castoff checkout --update --pin 2.6 --project torch WORK/pytorch
git -C WORK/pytorch submodule sync --recursive
git -C WORK/pytorch submodule update --init --recursive --depth=1 --jobs=4
castoff checkout --update --pin 2.6 --project torch_xla WORK/pytorch/xla
git -C WORK/pytorch/xla submodule sync --recursive
git -C WORK/pytorch/xla submodule update --init --recursive --depth=1 --jobs=4
uv venv --no-project --allow-existing --python python3.11 WORK/environment
uv pip install --python WORK/environment/bin/python --constraint WORK/constraints.txt --requirement WORK/pytorch/requirements.txt wheel pip ninja mkl-static mkl-include
python setup.py bdist_wheel with
  BLAS=MKL
  BUILD_TEST=0
  CMAKE_PREFIX_PATH=WORK/environment
  MAX_JOBS=1
  PYTORCH_BUILD_NUMBER=1
  PYTORCH_BUILD_VERSION=2.6.0+castoff.3
  USE_CUDA=0
  USE_ROCM=0
  USE_STATIC_MKL=1
  USE_XPU=0
  _GLIBCXX_USE_CXX11_ABI=0
uv pip install --python WORK/environment/bin/python --reinstall-package torch WORK/pytorch/dist/torch-2.6.0+castoff.3-cp311.whl
g++ -std=c++17 -O2 -DNDEBUG -fPIC -shared -fvisibility=hidden -fvisibility-inlines-hidden -D_GLIBCXX_USE_CXX11_ABI=0 -DCASTOFF_TORCH_GIT_VERSION="commit-of-pytorch" -DCASTOFF_TORCH_XLA_GIT_VERSION="commit-of-xla" -I WORK/pytorch/xla -isystem /site/torch/include -isystem /site/torch/include/torch/csrc/api/include WORK/pytorch/xla/torch_xla/csrc/castoff/one.cpp -L /site/torch/include/../lib -ltorch_cpu -lc10 -Wl,--disable-new-dtags,-rpath,$ORIGIN/../../torch/lib -o WORK/pytorch/xla/torch_xla/lib/libcastoff_torch_xla.so
python setup.py bdist_wheel with
  BAZEL_JOBS=1
  BUILD_CPP_TESTS=0
  BUNDLE_LIBTPU=0
  CXX_ABI=0
  GIT_VERSIONED_XLA_BUILD=0
  HERMETIC_PYTHON_VERSION=3.11
  TORCH_XLA_VERSION=2.6.0+castoff.3
  TPUVM_MODE=1
  VERSIONED_XLA_BUILD=0
uv pip install --python WORK/environment/bin/python --reinstall-package torch_xla WORK/pytorch/xla/dist/torch_xla-2.6.0+castoff.3-cp311.whl
castoff doctor --python WORK/environment/bin/python
""",  # noqa: E501
    )


def test_a_missing_program_is_named_before_anything_is_done(environment: dict[str, str]) -> None:
    Path(environment["PATH"], "bazel").unlink()
    done = _run(environment)
    assert done.returncode == 19
    assert "expected bazel on PATH, found none" in done.stderr
    assert not Path(environment["WORK"], "log").exists()
