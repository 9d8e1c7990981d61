"""An overlay must refuse every torch but the one it was built for, and say both names."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PACKAGE = Path(torch.__file__).parent
OTHER = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def other_torch(tmp_path):
    """A torch of links to this one, except that its version.py tells of another commit."""
    package = tmp_path / "torch"
    package.mkdir()
    for path in PACKAGE.iterdir():
        if path.name not in ("version.py", "__pycache__", "_castoff.py", "__init__.py", "lib"):
            (package / path.name).symlink_to(path)
    for name in ("_castoff.py", "__init__.py"):
        shutil.copy(PACKAGE / name, package / name)
    (package / "lib").mkdir()
    for path in (PACKAGE / "lib").iterdir():
        if path.name.startswith(("libcastoff", "libtorch_global")):
            shutil.copy(path, package / "lib" / path.name)
        else:
            (package / "lib" / path.name).symlink_to(path)
    text = (PACKAGE / "version.py").read_text()
    assert torch.version.git_version in text
    (package / "version.py").write_text(text.replace(torch.version.git_version, OTHER))
    return tmp_path


def run(program, site, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(site), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_import_of_another_torch_fails_and_names_both(other_torch):
    result = run("import torch", other_torch)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: castoff:")
    assert torch.version.git_version in last and OTHER in last
    assert "reinstall" in last


def test_without_its_python_half_the_overlay_stays_off_and_says_so(other_torch):
    """A torch whose Python files do not ask: the C++ half alone refuses."""
    switch = other_torch / "torch" / "_castoff.py"
    switch.write_text(switch.read_text().replace("\n_refuse_other_torch()\n", "\n"))
    init = other_torch / "torch" / "__init__.py"
    init.write_text(init.read_text().replace("from torch import _grad_dtype as _grad_dtype\n", ""))
    result = run("import torch; print(torch.ones(1, requires_grad=True).sum().backward())", other_torch)
    assert result.returncode == 0, result.stderr
    assert torch.version.git_version in result.stderr and OTHER in result.stderr
    assert "stays off" in result.stderr


@pytest.mark.fails_on_stock
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", [True, True]),
        ("grad-dtype", [False, True]),
        (" grad-dtype ,other", [False, False]),
        (",,", [True, True]),
        ("grad", [True, True]),
        ("grad-dtype\n", [False, True]),
        ("all", [False, False]),
    ],
)
def test_every_spelling_of_the_list(value, expected, monkeypatch):
    disabled_topics = torch._castoff.disabled_topics
    monkeypatch.setenv("CASTOFF_DISABLE", value)
    disabled_topics.cache_clear()
    try:
        assert [torch._castoff.enabled(topic) for topic in ("grad-dtype", "other")] == expected
    finally:
        monkeypatch.undo()
        disabled_topics.cache_clear()


@pytest.mark.parametrize("environment", [{}, {"CASTOFF_DISABLE": "all"}])
def test_libraries_that_are_loaded_later_do_not_find_torch(environment):
    """Only the interposed functions are global. _XLAC has its own copies of other symbols, and other kernels of XLA:CPU
    with torch's. The right torch says nothing."""
    program = "import ctypes, torch; print([hasattr(ctypes.CDLL(None), name) for name in {names!r}])"
    names = ["_ZN2at13globalContextEv", "_ZN3c1013AutogradState13get_tls_stateEv"]
    library = ctypes.CDLL(str(PACKAGE / "lib" / "libtorch_cpu.so"))
    assert all(hasattr(library, name) for name in names)
    result = run(program.format(names=names), "", **environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[False, False]\n", "")
