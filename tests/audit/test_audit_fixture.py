"""The fixture ``cast_audit``, from a wheel of castoff that lies beside torch."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.passes_on_stock

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"

TESTS = """
import os
os.environ["PJRT_DEVICE"] = "CPU"
import pytest
import torch
import torch_xla

def step(x):
    return x.bfloat16().float()

@pytest.fixture
def x():
    return torch.ones(4).to("xla")

def test_allowed(cast_audit, x):
    assert len(cast_audit(step, x, max_casts=2).casts) == 2

def test_too_many(cast_audit, x):
    cast_audit(step, x, max_casts=1)

def test_forbidden(cast_audit, x):
    cast_audit(step, x, forbid=["lossy-round-trip"], calls=2)

def test_a_mistake(cast_audit, x):
    cast_audit(step, x, forbid=["lossy"])
"""

LOCKED = """
import os
os.environ["PJRT_DEVICE"] = "CPU"
import torch
import torch_xla

def step(x):
    return x.{narrow}().float()

def test_locked(cast_audit):
    cast_audit(step, torch.ones(4).to("xla"), lock="dtypes.lock")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with castoff as pip would install it."""
    tree, wheels, packages = (tmp_path_factory.mktemp(name) for name in ("tree", "wheels", "packages"))
    shutil.copytree(ROOT / "castoff", tree / "castoff", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree)
    subprocess.run([sys.executable, "-c", BUILD, wheels], cwd=tree, check=True, capture_output=True)
    [wheel] = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages


def ran_tests(installed, folder, text, **variables):
    """Runs a file of tests, and returns what pytest says."""
    (folder / "test_mine.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(installed), **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", folder]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_lock_file(installed, tmp_path):
    text = LOCKED.format(narrow="bfloat16")
    missing = ran_tests(installed, tmp_path, text)
    assert "1 failed" in missing.stdout and "CASTOFF_WRITE_LOCKS=1 in the environment writes it" in missing.stdout
    assert "1 passed" in ran_tests(installed, tmp_path, text, CASTOFF_WRITE_LOCKS="1").stdout
    assert (tmp_path / "dtypes.lock").read_text(encoding="utf-8").splitlines()[2:] == [
        "forward | (outside modules) | bf16 → f32 | lossy round trip | explicit | float | 1",
        "forward | (outside modules) | f32 → bf16 | lossy narrowing | explicit | bfloat16 | 1",
    ]
    assert "1 passed" in ran_tests(installed, tmp_path, text).stdout
    changed = ran_tests(installed, tmp_path, LOCKED.format(narrow="half"))
    assert "1 failed" in changed.stdout
    assert "- forward | (outside modules) | bf16 → f32 | lossy round trip | explicit | float | 1" in changed.stdout
    assert "+ forward | (outside modules) | f16 → f32 | lossy round trip | explicit | float | 1" in changed.stdout


def test_in_someone_elses_tests(installed, tmp_path):
    done = ran_tests(installed, tmp_path, TESTS)
    assert "3 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "2 casts, where 1 are allowed" in done.stdout
    assert "1 × lossy round trip, which is forbidden: test_mine.py:9" in done.stdout
    assert re.search(r"^1 +24 +forward +f32 → bf16 +lossy narrowing +explicit", done.stdout, re.MULTILINE)
    assert "expected one of exact-widening, lossy-narrowing" in done.stdout


def test_the_files_are_in_it(installed):
    names = {path.name for path in (installed / "castoff" / "audit").iterdir()}
    assert names >= {"page.html", "report.schema.json", "meta.schema.json", "worker.py", "fixture.py"}
