"""Environments made by hard links: as an installer makes them, each once, none changed by another."""

import io
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from made_up import PYTHON, Tree, make_wheel

from castoff.builder.environments import Environments, Kind, program_python
from castoff.builder.install import copy_environment, lay_wheel
from castoff.builder.pipeline import build
from castoff.builder.plan import Request
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.errors import FetchError, MachineError
from castoff.core.interpreter import find_interpreter
from castoff.core.tools import tool
from castoff.model.pin import load_pin

BY_INSTALLER = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "RECORD"}


@pytest.fixture
def dist(warm_tree: Tree, console: Console) -> Path:
    make_wheel(warm_tree.wheels, "a_tool", "1.0", {"a_tool/__init__.py": b""})
    (warm_tree.root / "ci").mkdir()
    (warm_tree.root / "ci" / "requirements.lock").write_text("")
    return build(
        Request("cpu", "2.9", None, (), warm_tree.root / "dist", verify_install=False, root=warm_tree.root), console
    )


@pytest.fixture
def environments(dist: Path, context: Context, monkeypatch: pytest.MonkeyPatch) -> Environments:
    monkeypatch.setattr("castoff.builder.environments.TEST_TOOLS", ("a-tool",))
    return Environments(context, root=dist.parents[1])


def _installed(python: Path) -> dict[str, tuple[bytes, int]]:
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    files = [path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {
        path.relative_to(site).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in files
        if path.name not in BY_INSTALLER and path.relative_to(site).parts[0].startswith("torch")
    }


def _said(python: Path, program: str) -> bytes:
    return subprocess.check_output([python, "-c", program])


def _uv(*arguments: str | Path) -> None:
    subprocess.run([tool("uv"), *arguments], check=True, capture_output=True)


def test_a_patched_environment_is_what_an_installer_makes(
    environments: Environments, dist: Path, tmp_path: Path
) -> None:
    python = environments.patched(dist)
    _uv("venv", "--no-project", "--python", sys.executable, tmp_path / "other")
    other = tmp_path / "other" / "bin" / "python"
    wheels = sorted(dist.glob("*.whl"))
    _uv("pip", "install", "--no-deps", "--offline", "--no-cache", "--python", other, *wheels)
    assert _installed(python) == _installed(other)
    assert _said(python, "import torch; print(torch.__version__, torch.answer)") == b"2.9.0+castoff.3 42\n"
    _uv("pip", "check", "--python", python)
    _uv("pip", "uninstall", "--python", python, "torch", "torch_xla")
    assert not [name for name in _installed(python) if name.startswith("torch")]


def test_it_is_made_once_and_the_stock_one_stays_stock(
    environments: Environments, dist: Path, log: io.StringIO
) -> None:
    pin = load_pin(environments.root / "pins", "2.9")
    stock = environments.stock(pin, find_interpreter(PYTHON, environments.context.runner))
    before = _installed(stock)
    log.truncate(0)
    patched = environments.make(Kind.PATCHED, pin)
    assert log.getvalue().count("making an environment") == 1
    log.truncate(0)
    assert environments.make(Kind.PATCHED, pin) == patched
    assert "making" not in log.getvalue()
    assert _installed(stock) == before != _installed(patched)
    assert _said(stock, "import torch; print(torch.__version__, torch.answer)") == b"2.9.0+cu128 1\n"
    (environments.root / "patches/torch/answer/files/torch/_answer.py").write_text("answer = 43\n")
    build(
        Request("cpu", "2.9", None, (), dist.parent, verify_install=False, root=environments.root),
        environments.context.console,
    )
    assert environments.make(Kind.PATCHED, pin) != patched


def test_in_a_folder_of_ones_own(environments: Environments, tmp_path: Path) -> None:
    pin = load_pin(environments.root / "pins", "2.9")
    folder = tmp_path / "mine"
    assert environments.make(Kind.PATCHED, pin, folder=folder) == folder / "bin" / "python"
    with pytest.raises(MachineError, match="in the way"):
        environments.make(Kind.STOCK, pin, folder=folder)


def test_one_that_fails_leaves_nothing(environments: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = load_pin(environments.root / "pins", "2.9")
    monkeypatch.setattr("castoff.builder.environments.TEST_TOOLS", ("no-such-package",))
    with pytest.raises(FetchError, match="could not be made"):
        environments.make(Kind.TOOLS, pin)
    assert not list(environments.context.cache.environments.glob("tools-*"))


def test_without_wheels(environments: Environments, dist: Path) -> None:
    next(dist.glob("torch_xla-*.whl")).unlink()
    with pytest.raises(MachineError, match="there are no wheels") as caught:
        environments.patched(dist)
    assert caught.value.next_step == "Build them: ./build.sh --target cpu --pin 2.9"


def test_a_changed_module_is_compiled_anew(environments: Environments, dist: Path, tmp_path: Path) -> None:
    """Even if its time and size are those of the stock one."""
    pin = load_pin(environments.root / "pins", "2.9")
    upstream = environments.upstream(pin, find_interpreter(PYTHON, environments.context.runner))
    (site,) = upstream.parents[1].glob("lib/python3*/site-packages")
    subprocess.run(
        [upstream, "-c", "import compileall; compileall.compile_file('torch/other.py')"], cwd=site, check=True
    )
    assert list(site.glob("torch/__pycache__/other.*.pyc"))
    patched = environments.patched(dist)
    (copy,) = patched.parents[1].glob("lib/python3*/site-packages")
    assert not list(copy.glob("torch/__pycache__/other.*.pyc"))
    assert list(site.glob("torch/__pycache__/other.*.pyc"))
    assert _said(patched, "import torch.other; print(torch.other.third)") == b"30\n"


def test_scripts_name_the_environment_that_they_are_in(tmp_path: Path) -> None:
    for name in ("one", "other"):
        _uv("venv", "--no-project", "--python", sys.executable, tmp_path / name)
    one, other = (tmp_path / name / "bin" / "python" for name in ("one", "other"))
    script = one.with_name("tool")
    script.write_text(f"#!{one}\nimport sys; print(sys.prefix)\n")
    script.chmod(0o755)
    copy_environment(one, other)
    said = subprocess.run([other.with_name("tool")], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(tmp_path / "other")


def test_files_that_go_elsewhere_are_refused(environments: Environments, dist: Path, tmp_path: Path) -> None:
    python = environments.patched(dist)
    wheel = next(dist.glob("torch-*.whl"))
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("torch-2.9.0+castoff.3.data/scripts/run", b"")
    with pytest.raises(MachineError, match="beside the packages"):
        lay_wheel(wheel, next(dist.glob("torch-*.whl")), python)


class TestProgramPython:
    """Which environment a command is about."""

    def test_what_is_named(self, environments: Environments) -> None:
        pin = load_pin(environments.root / "pins", "2.9")
        assert program_python(sys.executable, pin, environments.context).path == Path(sys.executable)
        for python in ("3.99", "no/such/python"):
            with pytest.raises(MachineError):
                program_python(python, pin, environments.context)

    def test_the_active_one_if_it_has_torch_xla(
        self, environments: Environments, dist: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pin = load_pin(environments.root / "pins", "2.9")
        python = environments.patched(dist)
        monkeypatch.setenv("VIRTUAL_ENV", str(python.parents[1]))
        assert program_python(None, pin, environments.context).path == python

    def test_else_one_with_the_wheels_in_dist(
        self, environments: Environments, dist: Path, monkeypatch: pytest.MonkeyPatch, log: io.StringIO
    ) -> None:
        pin = load_pin(environments.root / "pins", "2.9")
        monkeypatch.delenv("VIRTUAL_ENV", raising=False)
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setattr("castoff.builder.environments.ROOT", environments.root)
        found = program_python(None, pin, environments.context)
        assert found.path is not None and found.path.is_relative_to(environments.context.cache.environments)
        assert f"taking one with the wheels in {dist}" in log.getvalue()


def test_the_cache_drops_what_was_long_unused(context: Context) -> None:
    folder = context.cache.environments
    for age, name in enumerate("abcd"):
        (folder / name).mkdir(parents=True)
        past = time.time() - age * 3600
        os.utime(folder / name, (past, past))
    context.cache.trim(folder, most=1, unused=2.5 * 3600)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c"]
