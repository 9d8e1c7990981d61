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

def test_locked(cast_audit, x):
    cast_audit(step, x, lock="dtypes.lock")

def test_locked_otherwise(cast_audit, x):
    cast_audit(lambda: x.half().float(), lock="dtypes.lock")

def test_no_lock(cast_audit, x):
    cast_audit(step, x, lock="none.lock")

def test_a_lock_is_written(cast_audit, x, monkeypatch):
    monkeypatch.setenv("CASTOFF_WRITE_LOCKS", "1")
    cast_audit(step, x, lock="new.lock")
"""

LOCK = """\
# castoff dtypes 1
forward | (outside modules) | bf16 → f32 | lossy round trip | explicit | float | 1
forward | (outside modules) | f32 → bf16 | lossy narrowing | explicit | bfloat16 | 1
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


def test_in_someone_elses_tests(installed, tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "dtypes.lock").write_text(LOCK, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "5 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "- forward | (outside modules) | bf16 → f32 | lossy round trip | explicit | float | 1" in done.stdout
    assert "+ forward | (outside modules) | f16 → f32 | lossy round trip | explicit | float | 1" in done.stdout
    assert re.search("there is no .*none.lock; CASTOFF_WRITE_LOCKS=1 in the environment writes it", done.stdout)
    assert (tmp_path / "new.lock").read_text(encoding="utf-8").splitlines()[2:] == LOCK.splitlines()[1:]
    assert "2 casts, where 1 are allowed" in done.stdout
    assert "1 × lossy round trip, which is forbidden: test_mine.py:9" in done.stdout
    assert re.search(r"^1 +24 +forward +f32 → bf16 +lossy narrowing +explicit", done.stdout, re.MULTILINE)
    assert "expected one of exact-widening, lossy-narrowing" in done.stdout


def test_the_files_are_in_it(installed):
    names = {path.name for path in (installed / "castoff" / "audit").iterdir()}
    assert names >= {"page.html", "report.schema.json", "meta.schema.json", "worker.py", "fixture.py"}
