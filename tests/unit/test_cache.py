"""castoff cache: what is in the cache, and what prune removes."""

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from castoff.cli import main as cli
from castoff.core.cache import Cache, sizes

DAY = 86400


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A cache with an environment of today, one of ten days ago, a wheel, and a lock; the environments share a file."""
    root = tmp_path / "cache"
    monkeypatch.setenv("CASTOFF_CACHE", str(root))
    for name in ("environments/new", "environments/old", "sha256/wheel", "test.abc/patched", "locks"):
        (root / name).mkdir(parents=True)
    (root / "environments/new/library").write_bytes(bytes(1 << 20))
    (root / "environments/old/library").hardlink_to(root / "environments/new/library")
    (root / "sha256/wheel/x.whl").write_bytes(bytes(1 << 21))
    (root / "locks/a.lock").touch()
    for name, days in (("environments/old", 10), ("sha256/wheel", 3), ("test.abc", 8), ("locks/a.lock", 99)):
        os.utime(root / name, (time.time() - days * DAY,) * 2)
    return root


def run(*arguments):
    done = CliRunner().invoke(cli.app, ["cache", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def names(root):
    return {path.relative_to(root).as_posix() for path in root.glob("*/*")}


def test_what_is_there(root, console):
    shown = run()
    assert [line.split()[0] for line in shown.splitlines()[1:] if "of " in line] == ["environments", "tests"]
    assert "sha256" in shown
    assert f"GB in {root}" in shown
    size = sizes(Cache(root, console).entries())
    assert 1 << 20 <= size["environments"] < 2 << 20  # the shared file once
    assert size["sha256"] >= 1 << 21
    assert json.loads(run("--json"))["bytes"] == size


def test_prune_removes_what_was_not_used_for_a_week(root):
    printed = run("prune")
    assert printed.startswith("2 of 4 entries removed, 0.00 GB")
    assert names(root) == {"environments/new", "sha256/wheel", "locks/a.lock"}
    assert (root / "environments/new/library").read_bytes() == bytes(1 << 20)


def test_prune_of_everything(root):
    run("prune", "--days", "0")
    assert names(root) == {"locks/a.lock"}
    assert run("prune").startswith("0 of 0 entries")


def test_a_cache_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("CASTOFF_CACHE", str(tmp_path / "none"))
    assert "0.00 GB" in run()
    assert not Path(tmp_path / "none").exists()


def test_environments_go_by_themselves_after_a_week(root, console):
    Cache(root, console).trim(root / "environments", most=0, unused=7 * DAY)
    assert "environments/old" not in names(root)
    assert "environments/new" in names(root)
