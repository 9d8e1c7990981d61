"""The built wheels themselves, from the real upstream ones. Run after ./build.sh --target cpu.

CASTOFF_PIN=2.6 in the environment means that pin's.
"""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
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
from castoff.formats.wheels import parse_record
from castoff.model.changelog import release_version
from castoff.model.pin import load_pin
from castoff.model.topics import load_topics, select

PIN = os.environ.get("CASTOFF_PIN", "2.9")
PROJECTS = load_pin(ROOT / "pins", PIN).projects
DIST = ROOT / "dist" / f"{PIN}-cpu"
CASTOFF = [str(ROOT / ".venv" / "bin" / "castoff")]


@pytest.fixture(scope="module")
def manifest():
    return json.loads((DIST / "manifest.json").read_text())


@pytest.mark.slow
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
    number = release_version(ROOT / "CHANGELOG.md")
    pin = load_pin(ROOT / "pins", PIN)
    wanted = {project: f"{pin.upstream(project).version}+castoff.{number}" for project in PROJECTS}
    assert {wheel.name.split("-")[0]: wheel.name.split("-")[1] for wheel in DIST.glob("*.whl")} == wanted
    for wheel in DIST.glob("*.whl"):
        with ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
            said = Parser().parsestr(archive.read(metadata).decode())
            assert said["Version"] == wanted[said["Name"].replace("-", "_")]


@pytest.mark.parametrize("project", PROJECTS)
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


@pytest.mark.skipif("torch_xla" not in PROJECTS, reason="this pin has none")
def test_torch_xla_holds_on_to_its_torch(tmp_path):
    """Without any constraints: a resolver finds no torch but castoff's for it."""
    environment = current_uv_environment(Runner(tmp_path / "logs", Console()))
    python = find_interpreter(json.loads((DIST / "manifest.json").read_text())["python"], Runner(tmp_path, Console()))
    uv, folder, found = tool("uv"), tmp_path / "venv", []
    subprocess.run([uv, "venv", "-q", "--python", python.path, folder], env=environment, check=True)
    (xla,) = DIST.glob("torch_xla-*.whl")
    for links in ([], ["--find-links", DIST]):
        command = [uv, "pip", "install", "--dry-run", "--python", folder / "bin" / "python", *links, xla]
        found.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=False))
    without, with_links = found
    assert without.returncode != 0 and "castoff" in without.stderr
    assert with_links.returncode == 0, with_links.stderr
    assert re.search(r"\+ torch==\S+\+castoff", with_links.stderr)


@pytest.mark.skipif(PIN != "2.9", reason="the docs show the default pin")
@pytest.mark.parametrize("constrained", [True, False])
def test_a_project_of_uv_locks_these_wheels_as_the_docs_say(tmp_path, constrained):
    """And without the constraints it does not: that is why they are there."""
    snippet = toml_snippets()[0].replace("dist/2.9-cpu", str(DIST))
    number = release_version(ROOT / "CHANGELOG.md")  # the docs show the last release; this may be a build after it
    snippet = re.sub(r"\+castoff\.\d+", f"+castoff.{number}", snippet)
    for line in (DIST / "constraints.txt").read_text().split():
        assert f'"{line}"' in snippet
    if not constrained:
        snippet = re.sub(r"(?ms)^constraint-dependencies = \[.*?^\]$", "", snippet)
    found = locked_by_uv(tmp_path, snippet)
    assert ("+castoff" in found["torch"], "+castoff" in found["torch-xla"]) == (constrained, constrained)


def toml_snippets():
    return re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)


def locked_by_uv(folder, snippet):
    """Lock a project that wants torch and torch_xla; return the version of each package."""
    python = json.loads((DIST / "manifest.json").read_text())["python"]
    project = f'[project]\nname = "train"\nversion = "0"\nrequires-python = "=={python}.*"\n'
    (folder / "pyproject.toml").write_text(f'{project}dependencies = ["torch", "torch_xla"]\n\n{snippet}')
    environment = current_uv_environment(Runner(folder / "logs", Console()))
    subprocess.run([tool("uv"), "lock", "--project", folder], env=environment, check=True)
    packages = tomllib.loads((folder / "uv.lock").read_text())["package"]
    return {package["name"]: package["version"] for package in packages}


@pytest.mark.slow
@pytest.mark.skipif(PIN != "2.9", reason="a matter of the release's code, not of the pin")
def test_a_release_of_these_wheels_is_installed_by_hash_from_a_file_server(tmp_path, manifest):
    """And one flipped bit in it is found, and named."""
    release = [*CASTOFF, "release", "--pin", PIN, "--python", manifest["python"], "--from", DIST.parent, "--dirty"]
    subprocess.run([*release, "--out", tmp_path, "--no-verify-install"], check=True, timeout=300)
    made = tmp_path / "release"
    check = [*CASTOFF, "verify", "--release", made]
    subprocess.run(check, check=True)

    runner = Runner(tmp_path / "logs", Console())
    python, uv, venv = find_interpreter(manifest["python"], runner).path, tool("uv"), tmp_path / "venv"
    environment = {**current_uv_environment(runner), "NO_PROXY": "127.0.0.1"}
    subprocess.run([uv, "venv", "-q", "--python", python, venv], env=environment, check=True)
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", made, "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        (address,) = re.findall(r"http://[\d.:]+/", server.stdout.readline())
        install = [uv, "pip", "install", "--no-cache", "--no-deps", "--python", venv / "bin" / "python"]
        index = ["--default-index", f"{address}simple/", "--require-hashes", "-r", made / "requirements" / f"{PIN}.txt"]
        subprocess.run([*install, *index], env=environment, check=True)
    finally:
        server.kill()
        server.wait()
    there = site(venv / "bin" / "python")
    for wheel in manifest["wheels"].values():
        with ZipFile(made / "wheels" / wheel["file"]) as archive:
            infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        names = [name for name in infos if not name.endswith("/RECORD") and ".data/" not in name]
        assert [name for name in names if (there / name).stat().st_size != infos[name].file_size] == []
    shutil.rmtree(venv)

    found = locked_by_uv(tmp_path, toml_snippets()[1].replace("dist/release", str(made)))
    assert [found[name] for name in ("torch", "torch-xla")] == [
        wheel["version"] for wheel in manifest["wheels"].values()
    ]

    (wheel,) = made.glob("wheels/torch_xla-*.whl")
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.unlink()  # a hard link: the bytes are those in dist
    wheel.write_bytes(data)
    refused = subprocess.run(check, capture_output=True, text=True, check=False)
    assert refused.returncode == 16 and str(wheel) in refused.stderr
    shutil.rmtree(made)


@pytest.mark.skipif(not load_pin(ROOT / "pins", PIN).companions, reason="this pin names none")
def test_companions_of_the_constraints_work_with_this_torch(tmp_path):
    """Each calls an operator of its own C++, where it has any; torch stays what it is."""
    companions = load_pin(ROOT / "pins", PIN).companions
    made = subprocess.run(
        [*CASTOFF, "env", "patched", tmp_path / "env", "--pin", PIN], check=True, capture_output=True, text=True
    )
    python = Path(made.stdout.strip())
    (version,) = site(python).glob("torch-*.dist-info")
    install = [tool("uv"), "pip", "install", "-q", "--python", python, "--constraint", DIST / "constraints.txt"]
    environment = current_uv_environment(Runner(tmp_path / "logs", Console()))
    subprocess.run([*install, "--find-links", DIST, *companions], env=environment, check=True)
    assert version.is_dir() and {"torchvision", "torchaudio"} <= companions.keys()
    program = "import torch\n" + "".join(
        f"import {name}\n{COMPANIONS[name]}\nprint({name}.__version__.partition('+')[0])\n" for name in companions
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(companions.values())


COMPANIONS = {
    "torchvision": "torchvision.ops.nms(torch.tensor([[0.0, 0, 1, 1]]), torch.tensor([0.5]), 0.5)",
    "torchaudio": "torchaudio.functional.lfilter(torch.rand(1, 9), torch.tensor([1, 0.2]), torch.tensor([0.5, 0.1]))",
    "torchao": "import torchao.quantization as quantization\n"
    "module = torch.nn.Sequential(torch.nn.Linear(32, 32))\n"
    "quantization.quantize_(module, quantization.int8_weight_only() if hasattr(quantization, 'int8_weight_only')\n"
    "                       else quantization.Int8WeightOnlyConfig())\n"
    "module(torch.rand(2, 32))",
}


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


@pytest.mark.slow
def test_castoff_install_makes_what_the_wheels_make_and_uninstall_undoes_it(tmp_path):
    """With castoff's package, on the real stock wheels: the same files, then the same stock files as before."""
    build = [*CASTOFF, "build", "--target", "package", "--pin", PIN, "--out", tmp_path]
    subprocess.run(build, check=True)
    (package,) = (tmp_path / "package").glob("castoff-*.whl")
    assert package.stat().st_size < 5e6
    castoff = installed_package(package, tmp_path)
    refused = subprocess.run([castoff, "build", "--target", "cpu"], capture_output=True, text=True, check=False)
    assert refused.returncode == 19 and "castoff build needs castoff's tree" in refused.stderr
    stock, patched = (environment(kind, tmp_path) for kind in ("stock", "patched"))
    before = identities(stock)

    start = time.monotonic()
    subprocess.run([castoff, "install", "--python", stock], check=True)
    assert time.monotonic() - start < 30  # 1 s, on a machine that does nothing else
    written = {path for path, identity in identities(stock).items() if identity not in before.values()}
    assert sum((site(stock) / path).stat().st_size for path in written) < 6e6
    ours, theirs = files(stock), files(patched)
    assert ours == theirs
    for path in ours:
        one, other = site(stock) / path, site(patched) / path
        if path.name == "RECORD":
            assert rows(one) == rows(other)
        else:
            assert filecmp.cmp(one, other, shallow=False), f"{path} is not the wheel's"
            assert one.stat().st_mode == other.stat().st_mode, path
    subprocess.run([tool("uv"), "pip", "check", "--python", stock], check=True)
    doctor = subprocess.run([stock, "-m", "castoff_doctor"], env={**os.environ, "PJRT_DEVICE": "CPU"}, check=False)
    assert doctor.returncode == 0
    state = subprocess.run([castoff, "status", "--python", stock], check=True, capture_output=True, text=True)
    assert state.stdout.count("patched in place by castoff") == len(PROJECTS) and "changed since" not in state.stdout

    subprocess.run([castoff, "uninstall", "--python", stock], check=True)
    after = identities(stock)
    assert {path: after.get(path) for path in before} == before
    assert {path for path in after.keys() - before.keys() if path.suffix != ".pyc"} == set()

    # Topics that are left out are off in both halves, unless a program says otherwise.
    subprocess.run([castoff, "install", "--python", stock, "--topics", "graph-identity"], check=True)
    for disable, answer in ((None, "False False"), ("record-implicit-casts", "True True")):
        environment_ = {**os.environ, "PJRT_DEVICE": "CPU", **({"CASTOFF_DISABLE": disable} if disable else {})}
        said = subprocess.run(
            [stock, "-c", KEEPS_ITS_NODE], env=environment_, check=True, capture_output=True, text=True
        )
        assert said.stdout.split() == answer.split()
    subprocess.run([castoff, "uninstall", "--python", stock], check=True)


KEEPS_ITS_NODE = """
import torch
from torch._castoff import enabled

weight = torch.ones(2, requires_grad=True)
node = lambda: weight.expand_as(weight).grad_fn.next_functions[0][0]
before = node()
weight.data = weight.data.bfloat16()
print(enabled("data-setter"), node() is before)
"""


def installed_package(package, folder):
    """Install castoff's package with what it declares, in the versions of the lock file; return its command."""
    lock = (ROOT / "ci" / "requirements.lock").read_text(encoding="utf-8")
    versions = re.findall(r"^[\w.-]+==[^\s\\;]+", lock, re.MULTILINE)
    (folder / "constraints.txt").write_text("\n".join(versions))
    environment = current_uv_environment(Runner(folder / "logs", Console()))
    uv, venv = tool("uv"), folder / "castoff"
    subprocess.run([uv, "venv", "-q", "--no-project", "--python", sys.executable, venv], env=environment, check=True)
    install = [uv, "pip", "install", "-q", "--python", venv / "bin" / "python"]
    constrained = [*install, "--constraint", folder / "constraints.txt", package]
    subprocess.run(constrained, env=environment, check=True)
    return venv / "bin" / "castoff"


def environment(kind, folder):
    """Return the Python of an environment: stock ones are made anew, since they are changed."""
    where = [folder / kind] if kind == "stock" else []
    made = [*CASTOFF, "env", kind, *where, "--pin", PIN]
    return Path(subprocess.run(made, check=True, capture_output=True, text=True).stdout.strip())


def site(python):
    (found,) = python.parents[1].glob("lib/python3*/site-packages")
    return found


def identities(python):
    """Every file of an environment, as the system knows it: replaced and written files get another identity."""
    paths = [path for path in site(python).rglob("*") if path.is_file()]
    return {
        path.relative_to(site(python)): (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size)
        for path in paths
    }


def files(python):
    """The files of torch and torch_xla, but for what installers and Python itself add."""
    paths = [path.relative_to(site(python)) for path in site(python).rglob("*") if path.is_file()]
    ours = ("torch", "castoff")
    return {
        path
        for path in paths
        if path.parts[0].startswith(ours)
        and path.suffix != ".pyc"
        and path.name not in {"REQUESTED", "direct_url.json"}
    }


def rows(record):
    named = {row for row in parse_record(record.read_bytes()) if Path(row.path).name != "REQUESTED"}
    return {row for row in named if not row.path.endswith(".pyc")}
