"""The environment that `castoff install` patches when none is named."""

import sys
from pathlib import Path

import pytest

from castoff.cli.inplace import _python


def test_an_active_environment_is_meant_and_else_castoffs_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "first on PATH" / "python3"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert _python(None) == Path(sys.executable).absolute()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert _python(None) == tmp_path / "active" / "bin" / "python"
    assert _python(Path("/named/bin/python")) == Path("/named/bin/python")
