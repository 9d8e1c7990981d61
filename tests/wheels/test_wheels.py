"""The built wheels themselves, from the real upstream ones. Run after ./build.sh --target cpu.

CASTOFF_PIN=2.6 in the environment means that pin's.
"""

import json
import os
import re
import shutil
import subprocess
import zlib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from castoff.core.console import Console
from castoff.core.interpreter import find_interpreter
from castoff.core.pipconfig import current_uv_environment
from castoff.core.places import ROOT
from castoff.core.runner import Runner
from castoff.core.tools import tool
from castoff.model.changelog import release_number
from castoff.model.pin import PROJECTS, load_pin
from castoff.model.topics import load_topics, select

PIN = os.environ.get("CASTOFF_PIN", "2.9")
DIST = ROOT / "dist" / f"{PIN}-cpu"
CASTOFF = [str(ROOT / ".venv" / "bin" / "castoff")]


@pytest.fixture(scope="module")
def manifest():
    return json.loads((DIST / "manifest.json").read_text())


@pytest.mark.skipif(PIN != "2.9", reason="minutes long, and a matter of the build's code, not of the pin")
def test_a_second_build_gives_the_same_bytes(tmp_path):
    """The whole build once more, warm, and in less than the 90 s that a build may take."""
    subprocess.run([*CASTOFF, "build", "--target", "cpu", "--out", str(tmp_path)], check=True, timeout=300)
    names = sorted(path.name for path in DIST.iterdir())
    assert sorted(path.name for path in (tmp_path / "2.9-cpu").iterdir()) == names
    for name in names:
        result = subprocess.run(["cmp", DIST / name, tmp_path / "2.9-cpu" / name], check=False)
        assert result.returncode == 0, f"{name} differs from one build to the next"
    shutil.rmtree(tmp_path / "2.9-cpu")


def test_versions_come_from_the_changelog(manifest):
    number = release_number(ROOT / "CHANGELOG.md")
    pin = load_pin(ROOT / "pins", PIN)
    wanted = {project: f"{pin.upstream(project).version}+castoff.{number}" for project in PROJECTS}
    assert {wheel.name.split("-")[0]: wheel.name.split("-")[1] for wheel in DIST.glob("*.whl")} == wanted
    for wheel in DIST.glob("*.whl"):
        with ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
            said = Parser().parsestr(archive.read(metadata).decode())
            assert said["Version"] == wanted[said["Name"].replace("-", "_")]


@pytest.mark.parametrize("project", ["torch", "torch_xla"])
def test_constraints_keep_stock_wheels_out(project, tmp_path, manifest):
    """With the constraints and an index that has stock torch only, nothing is installed."""
    runner = Runner(tmp_path / "logs", Console())
    environment = current_uv_environment(runner)
    python = find_interpreter(manifest["python"], runner).path
    uv, folder = tool("uv"), tmp_path / "venv"
    subprocess.run([uv, "venv", "-q", "--python", python, folder], env=environment, check=True)
    install = [uv, "pip", "install", "--dry-run", "--no-deps", "--python", folder / "bin" / "python", project]
    constrained = [*install, "--constraint", DIST / "constraints.txt"]
    refused = subprocess.run(constrained, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "castoff" in refused.stderr
    found = subprocess.run(
        [*constrained, "--find-links", DIST], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "castoff" in found.stderr


def test_an_environment_has_the_files_of_the_wheels_and_no_others():
    """As an installer would leave it, though `castoff env` begins with a copy of one that has the stock wheels."""
    made = subprocess.run([*CASTOFF, "env", "patched", "--pin", PIN], check=True, capture_output=True, text=True)
    python = Path(made.stdout.strip())
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    wanted = {}
    for wheel in DIST.glob("*.whl"):
        with ZipFile(wheel) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
        wanted |= {info.filename: info for info in files if not info.filename.endswith(".dist-info/RECORD")}
    for name, info in wanted.items():
        assert crc32_of(site / name) == info.CRC, f"{name} is not the wheel's"
        assert os.access(site / name, os.X_OK) == bool(info.external_attr >> 16 & 0o100), name
    folders = {name.partition("/")[0] for name in wanted if "/" in name}
    there = [path for folder in folders for path in (site / folder).rglob("*") if path.is_file()]
    own = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"}
    extra = [path for path in there if path.suffix != ".pyc" and path.name not in own]
    assert {path.relative_to(site).as_posix() for path in extra} <= wanted.keys()
    runner = python.with_name("torchrun").read_text().splitlines()
    assert str(python.parent) in "".join(runner[:3])


def crc32_of(path):
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def test_the_manifest_tells_what_is_there(manifest):
    text = json.dumps(manifest)
    for path in DIST.glob("*.whl"):
        assert path.name in text
        assert subprocess.check_output(["sha256sum", path]).split()[0].decode() in text
    topics = select(load_topics(ROOT / "patches"), PIN)
    assert [topic["name"] for topic in manifest["topics"]] == [topic.key for topic in topics]
    assert str(Path.home()) not in text
