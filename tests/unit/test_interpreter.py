"""Where a CPython is looked for, and what is said where there is none."""

import sys
from pathlib import Path

import pytest

from castoff.core import interpreter
from castoff.core.console import Console
from castoff.core.errors import MachineError
from castoff.core.interpreter import find_interpreter
from castoff.core.runner import Runner

RUNNING = "{}.{}".format(*sys.version_info[:2])


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Nothing is on PATH, in pyenv or in uv, unless the test puts it there."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    return Runner(tmp_path / "logs", Console())


def pretend(path: Path, version: str) -> Path:
    """Put a program there that answers as a CPython of that version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho \'["CPython", "{version}", "x86_64"]\'\n')
    path.chmod(0o755)
    return path


def test_the_running_one_serves_where_it_is_supported(runner: Runner) -> None:
    assert find_interpreter(None, runner, ["3.6", RUNNING]).path == Path(sys.executable)


def test_one_on_path_comes_before_one_in_pyenv(runner: Runner, tmp_path: Path) -> None:
    inside = pretend(tmp_path / "pyenv" / "versions" / "3.7.9" / "bin" / "python3.7", "3.7")
    assert find_interpreter(None, runner, ["3.7"]).path == inside
    first = pretend(tmp_path / "bin" / "python3.7", "3.7")
    assert find_interpreter(None, runner, ["3.7"]).path == first


def test_the_newest_that_is_there_is_taken(runner: Runner, tmp_path: Path) -> None:
    pretend(tmp_path / "bin" / "python3.6", "3.6")
    newest = pretend(tmp_path / "pyenv" / "versions" / "3.7.9" / "bin" / "python3.7", "3.7")
    found = find_interpreter(None, runner, ["3.6", "3.7", "3.8"])
    assert (found.version, found.path) == ("3.7", newest)


def test_a_shim_without_a_python_behind_it_is_passed_over(runner: Runner, tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "python3.7"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    inside = pretend(tmp_path / "pyenv" / "versions" / "3.7.9" / "bin" / "python3.7", "3.7")
    assert find_interpreter(None, runner, ["3.7"]).path == inside


def test_one_of_uv_is_found(runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = pretend(tmp_path / "uv" / "python3.7", "3.7")
    uv = tmp_path / "uv" / "uv"
    uv.write_text(f"#!/bin/sh\necho {inside}\n")
    uv.chmod(0o755)
    monkeypatch.setattr(interpreter, "tool", lambda name: uv)
    assert find_interpreter(None, runner, ["3.7"]).path == inside


def test_where_there_is_none_the_message_says_which_where_and_what_to_do(runner: Runner) -> None:
    with pytest.raises(MachineError) as caught:
        find_interpreter(None, runner, ["3.6", "3.7"])
    error = caught.value
    assert "CPython 3.7 or 3.6" in error.expected and "PATH" in error.expected
    assert "pyenv" in error.expected and "uv" in error.expected
    assert RUNNING in error.found
    assert "uv python install 3.7" in error.next_step and "--python" in error.next_step


def test_one_asked_for_by_version_need_not_be_there(runner: Runner) -> None:
    assert find_interpreter("3.7", runner).path is None
