"""The build from source: its plan, compared step by step; the preflight on faked machines; kill and resume."""

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from expecttest import assert_expected_inline
from made_up import PATCH, PYTHON, Tree

from castoff.build.plan import Request
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.errors import BuildError, CommandError, PreflightError, TopicError
from castoff.core.places import ROOT
from castoff.core.runner import Runner
from castoff.model.pin import Source, load_pin
from castoff.model.topics import load_topics, select
from castoff.source.plan import Command, Job, Step, make_plan, projects_to_overlay
from castoff.source.preflight import Machine, check, examine, look, report
from castoff.source.run import as_data, carry_out, describe, duration, source_build

REPOSITORIES = ("https://github.com/pytorch/pytorch", "https://github.com/pytorch/xla")


@pytest.fixture
def job(full_tree: Tree) -> Job:
    pin = replace(
        load_pin(full_tree.root / "pins", "2.9"), source=Source("requirements-build.txt", ("cmake<4",), ("9.4", "13"))
    )
    return Job(
        pin=pin,
        version="castoff.3",
        target="tpu",
        python="3.11",
        interpreter=Path("/usr/bin/python3.11"),
        topics=select(load_topics(full_tree.root / "patches"), "2.9"),
        work=Path("/work"),
        out=Path("/out"),
        jobs=(8, 4),
        launcher=None,
        remote_cache=None,
    )


def _text(job: Job) -> str:
    text = describe(make_plan(job)).replace(f"{sys.executable} -m castoff", "castoff")
    return text.replace(str(Path(sys.executable).parent / "uv"), "uv").replace(str(ROOT), "/castoff")


def test_the_plan_is_upstreams_own_steps(job: Job) -> None:
    assert_expected_inline(
        _text(job),
        """\
1. checkout-torch: torch v2.9.0 (aaaaaaaaaaaa) with 1 topics, a commit for each
   $ cd /castoff && castoff checkout --update --pin 2.9 --project torch /work/pytorch
2. submodules-pytorch: what upstream has in other repositories
   $ cd /work/pytorch && git submodule sync --recursive
   $ cd /work/pytorch && git submodule update --init --recursive --depth=1 --jobs=4
3. checkout-torch_xla: torch_xla v2.9.0 (bbbbbbbbbbbb) with 1 topics, a commit for each
   $ cd /castoff && castoff checkout --update --pin 2.9 --project torch_xla /work/pytorch/xla
4. submodules-xla: what upstream has in other repositories
   $ cd /work/pytorch/xla && git submodule sync --recursive
   $ cd /work/pytorch/xla && git submodule update --init --recursive --depth=1 --jobs=4
5. environment: CPython 3.11 and the packages of the build
   write /work/constraints.txt
   | cmake<4
   $ cd / && uv venv --no-project --allow-existing --python /usr/bin/python3.11 /work/environment
   $ cd / && uv pip install --python /work/environment/bin/python --constraint /work/constraints.txt --requirement /work/pytorch/requirements-build.txt wheel pip mkl-static mkl-include
6. torch: upstream's build of torch, by ninja, 8 compilers at once
   $ cd /work/pytorch && PATH="/work/environment/bin:$PATH" \\
       PYTORCH_BUILD_VERSION="2.9.0+castoff.3" \\
       PYTORCH_BUILD_NUMBER="1" \\
       _GLIBCXX_USE_CXX11_ABI="1" \\
       USE_CUDA="0" \\
       USE_ROCM="0" \\
       USE_XPU="0" \\
       BUILD_TEST="0" \\
       CMAKE_PREFIX_PATH="/work/environment" \\
       BLAS="MKL" \\
       USE_STATIC_MKL="1" \\
       MAX_JOBS="8" \\
       /work/environment/bin/python setup.py bdist_wheel
   $ cd / && uv pip install --python /work/environment/bin/python --reinstall-package torch /work/pytorch/dist/torch-2.9.0+castoff.3-cp311-cp311-linux_x86_64.whl
7. torch_xla: upstream's build of torch_xla, by Bazel, 4 compilers at once
   write /work/pytorch/xla/.bazelrc.user
   | build --disk_cache=/work/bazel
   $ cd /work/pytorch/xla && PATH="/work/environment/bin:$PATH" \\
       TORCH_XLA_VERSION="2.9.0+castoff.3" \\
       GIT_VERSIONED_XLA_BUILD="0" \\
       VERSIONED_XLA_BUILD="0" \\
       CXX_ABI="1" \\
       HERMETIC_PYTHON_VERSION="3.11" \\
       TPUVM_MODE="1" \\
       BUNDLE_LIBTPU="0" \\
       BUILD_CPP_TESTS="0" \\
       BAZEL_JOBS="4" \\
       /work/environment/bin/python setup.py bdist_wheel
8. assemble: the C++ of torch and torch_xla's topics, checks, and the output folder
   $ cd /castoff && castoff assemble --pin 2.9 --target tpu --python /usr/bin/python3.11 /work/pytorch/dist/torch-2.9.0+castoff.3-cp311-cp311-linux_x86_64.whl /work/pytorch/xla/dist/torch_xla-2.9.0+castoff.3-cp311-cp311-linux_x86_64.whl --out /out""",  # noqa: E501
    )


def test_caches_of_a_build_farm(job: Job) -> None:
    plain, cached = _text(job), _text(replace(job, launcher=Path("/usr/bin/ccache"), remote_cache="grpc://farm:9092"))
    new = [line for line in cached.splitlines() if line not in plain.splitlines()]
    assert [line for line in new if line.startswith("   |")] == [
        "   | build --remote_cache=grpc://farm:9092",
        "   | build --remote_upload_local_results",
    ]
    assert [line.strip(" \\") for line in new if "ccache" in line] == [
        'CMAKE_C_COMPILER_LAUNCHER="/usr/bin/ccache"',
        'CMAKE_CXX_COMPILER_LAUNCHER="/usr/bin/ccache"',
    ]


def test_older_pins_say_their_own_abi_and_requirements(job: Job) -> None:
    for name, numpy in (("2.6", False), ("2.1", True)):
        text = _text(replace(job, pin=load_pin(ROOT / "pins", name)))
        assert '_GLIBCXX_USE_CXX11_ABI="0"' in text
        assert 'CXX_ABI="0"' in text
        assert "/work/pytorch/requirements.txt" in text
        assert ("   | numpy<2\n" in text) == numpy


def test_the_plan_as_data_has_the_same_commands(job: Job) -> None:
    plan = make_plan(job)
    steps = as_data(plan, (), job)["steps"]
    assert [step["name"] for step in steps] == [step.name for step in plan]
    assert all(command in describe(plan) for step in steps for command in step["commands"])


def test_a_dry_run_shows_plan_and_preflight_and_does_nothing(
    full_tree: Tree, console: Console, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _add_source(full_tree)
    _only_these_programs(tmp_path / "programs", monkeypatch, {"git": "exit 1", "g++": "echo 12.2.0"})
    request = Request("cpu", "2.9", PYTHON, (), tmp_path / "dist", verify_install=False, root=full_tree.root)
    source_build(request, tmp_path / "work", console, dry_run=True)
    shown = log.getvalue()
    assert "6. torch: upstream's build of torch, by ninja" in shown
    assert "missing  bazel: none" in shown
    assert "time     about " in shown
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "dist").exists()


BUILD_VARIABLES = (
    "diff --git a/build_variables.bzl b/build_variables.bzl\n--- a/build_variables.bzl\n"
    '+++ b/build_variables.bzl\n@@ -1,1 +1,2 @@\n core = [\n+    "torch/csrc/better.cpp",\n'
)


def test_cpp_of_torch_is_compiled_in_where_hunks_call_it_and_an_overlay_elsewhere(full_tree: Tree) -> None:
    topics = select(load_topics(full_tree.root / "patches"), "2.9")
    assert projects_to_overlay(topics, "2.9") == ("torch", "torch_xla")
    (topics[0].folder / "hunks" / "2.9.patch").write_text(PATCH + BUILD_VARIABLES)
    assert projects_to_overlay(topics, "2.9") == ("torch_xla",)


def test_no_topic_is_left_out_in_silence(full_tree: Tree) -> None:
    (full_tree.root / "patches/torch/answer/hunks/2.9.patch").write_text(PATCH + BUILD_VARIABLES)
    full_tree.topic("other", {"files/torch/csrc/other.cpp": ""})
    with pytest.raises(TopicError, match="have no C") as caught:
        projects_to_overlay(select(load_topics(full_tree.root / "patches"), "2.9"), "2.9")
    assert caught.value.found == "so in torch/answer, not in torch/other"


@pytest.mark.parametrize(("pin", "projects"), [("2.6", ("torch_xla",)), ("2.9", None), ("2.1", None)])
def test_every_pin_has_each_topic_once(pin: str, projects: tuple[str, ...] | None) -> None:
    found = projects_to_overlay(select(load_topics(ROOT / "patches"), pin), pin)
    assert found == (projects or found)


# The preflight.

GOOD = Machine(
    cores=32,
    memory_gb=128,
    disk_gb=500,
    gcc="12.2.0",
    programs={name: Path("/usr/bin", name) for name in ("git", "g++", "patch", "bazel", "ccache")},
    headers=True,
    unreachable={},
)


def _states(machine: Machine, job: Job) -> dict[str, str]:
    return {finding.what: finding.state for finding in examine(machine, job.pin)}


def test_a_machine_that_has_all(job: Job) -> None:
    findings = examine(GOOD, job.pin)
    assert {finding.state for finding in findings} == {"ok"}
    check(findings)


@pytest.mark.parametrize(
    ("change", "what", "state"),
    [
        ({"disk_gb": 79}, "disk", "missing"),
        ({"memory_gb": 8}, "memory", "missing"),
        ({"gcc": None}, "compiler", "missing"),
        ({"gcc": "8.3.0"}, "compiler", "missing"),
        ({"gcc": "9.4.0"}, "compiler", "ok"),
        ({"gcc": "14.2.0"}, "compiler", "note"),
        ({"headers": False}, "Python.h", "missing"),
        ({"programs": {**GOOD.programs, "git": None}}, "git", "missing"),
        ({"programs": {"git": Path("/usr/bin/git"), "patch": Path("/usr/bin/patch")}}, "bazel", "missing"),
        ({"programs": {}}, "cache", "note"),
        ({"unreachable": {REPOSITORIES[0]: "no route"}}, "network", "missing"),
    ],
)
def test_what_a_machine_lacks_is_named(change: dict[str, object], what: str, state: str, job: Job) -> None:
    machine = replace(GOOD, **change)
    assert _states(machine, job)[what] == state
    finding = next(finding for finding in examine(machine, job.pin) if finding.what == what)
    assert bool(finding.remedy) == (state != "ok")


def test_all_that_is_missing_is_said_at_once(job: Job) -> None:
    bare = Machine(2, 4, 10, None, {}, False, dict.fromkeys(REPOSITORIES, "Could not resolve host"))
    with pytest.raises(PreflightError) as caught:
        check(examine(bare, job.pin))
    for word in ("disk: 10 GB", "memory: 4 GB", "compiler: none", "git: none", "bazel: none", "Python.h: none"):
        assert word in caught.value.found
    assert caught.value.found.count("Could not resolve host") == len(REPOSITORIES)
    assert "apt-get install build-essential" in caught.value.next_step
    assert caught.value.exit_code == 25
    assert report(examine(bare, job.pin)).count("missing") == 9


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"), [(32, 128, (32, 32)), (32, 32, (16, 8)), (2, 1, (1, 1)), (96, 190, (95, 47))]
)
def test_as_many_compilers_as_memory_allows(cores: int, memory: float, jobs: tuple[int, int]) -> None:
    assert replace(GOOD, cores=cores, memory_gb=memory).jobs() == jobs


def test_the_time_is_said_beforehand(job: Job) -> None:
    plan = make_plan(job)
    assert duration(plan, job).startswith("about 9 h")
    assert duration(plan, replace(job, jobs=(96, 48))).startswith("about 1 h")


def test_a_machine_is_looked_at(job: Job, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = "echo 'fatal: Could not resolve host' >&2; exit 128"
    _only_these_programs(tmp_path / "programs", monkeypatch, {"git": offline, "g++": "echo 10.2.1", "ccache": ""})
    machine = look(job.pin, Path(sys.executable), tmp_path / "not" / "yet", runner)
    assert machine.gcc == "10.2.1"
    assert machine.programs.keys() == {"git", "g++", "ccache"}
    assert machine.launcher == tmp_path / "programs" / "ccache"
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.disk_gb > 0 < machine.memory_gb
    assert set(machine.unreachable.values()) == {"fatal: Could not resolve host"}
    assert len(machine.unreachable) == 3


def _only_these_programs(folder: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> None:
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    for name in ("timeout", "sh"):
        (folder / name).symlink_to(Path("/usr/bin", name))
    monkeypatch.setenv("PATH", str(folder))


def _add_source(tree: Tree) -> None:
    pin = tree.root / "pins" / "2.9.toml"
    table = '\n[source]\nrequirements = "requirements-build.txt"\nconstraints = []\ngcc = ["9.4", "13"]\n'
    pin.write_text(pin.read_text() + table)


# Carrying it out.


def _step(name: str, script: str, folder: Path) -> Step:
    return Step(name, f"does {name}", (Command(("sh", "-c", script), str(folder)),))


def _plan(folder: Path, second: str) -> tuple[Step, ...]:
    return tuple(
        _step(name, f"echo {name} >> log; {script}", folder)
        for name, script in (("one", "true"), ("two", second), ("three", "true"))
    )


def _log(folder: Path) -> list[str]:
    return (folder / "log").read_text().split()


def test_a_step_that_failed_is_begun_again_and_those_before_are_not(tmp_path: Path, context: Context) -> None:
    plan = _plan(tmp_path, "test -e ready")
    with pytest.raises(BuildError) as caught:
        carry_out(plan, tmp_path, context)
    assert "the step two failed" in caught.value.summary
    (tmp_path / "ready").touch()
    carry_out(plan, tmp_path, context)
    assert _log(tmp_path) == ["one", "two", "two", "three"]
    carry_out(plan, tmp_path, context)
    assert _log(tmp_path) == ["one", "two", "two", "three"]


def test_a_step_that_changed_is_done_again_with_all_after_it(tmp_path: Path, context: Context) -> None:
    carry_out(_plan(tmp_path, "true"), tmp_path, context)
    carry_out(_plan(tmp_path, "true # otherwise"), tmp_path, context)
    assert _log(tmp_path) == ["one", "two", "three", "two", "three"]


KILLED = """
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from castoff.core.cache import Cache
from castoff.cli.main import _terminate
from castoff.core.console import Console
from castoff.core.context import Context
from castoff.core.runner import Runner
from castoff.source.run import carry_out
from test_source_build import _plan
signal.signal(signal.SIGTERM, _terminate)
folder, console = Path(sys.argv[1]), Console()
context = Context(Cache(folder / "cache", console), Runner(folder / "logs", console), console)
carry_out(_plan(folder, sys.argv[2]), folder, context)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_taken_up_again_after_a_kill(how: signal.Signals, tmp_path: Path, context: Context) -> None:
    # The second step runs for ever while the file is not there, in a child of the shell.
    second = "while ! test -e ready; do sh -c 'echo $$ > child; exec sleep 0.05'; done"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, tmp_path, second, Path(__file__).parent]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_for((tmp_path / "child").is_file)
    first = (tmp_path / "child").read_text()
    _wait_for(lambda: (tmp_path / "child").read_text() != first)  # castoff has it in hand by now
    with pytest.raises(BuildError, match="another build works there"):
        carry_out(_plan(tmp_path, second), tmp_path, context)
    process.send_signal(how)
    process.wait(timeout=60)
    if how == signal.SIGTERM:  # who is asked politely leaves nothing running
        before = (tmp_path / "child").read_text()
        time.sleep(0.5)
        assert (tmp_path / "child").read_text() == before
    (tmp_path / "ready").touch()
    carry_out(_plan(tmp_path, second), tmp_path, context)
    assert _log(tmp_path) == ["one", "two", "two", "three"]


def _wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_command_finds_programs_of_its_environment_first(tmp_path: Path, context: Context) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cmake").write_text("#!/bin/sh\necho ours > said\n")
    (tmp_path / "bin" / "cmake").chmod(0o755)
    command = Command(("sh", "-c", "cmake && git --version"), str(tmp_path), (("PATH", f"{tmp_path}/bin:$PATH"),))
    carry_out((Step("one", "", (command,), ((str(tmp_path / "a/rc"), "text\n"),)),), tmp_path, context)
    assert (tmp_path / "said").read_text() == "ours\n"
    assert (tmp_path / "a" / "rc").read_text() == "text\n"


def test_the_log_of_a_failed_step_is_named(tmp_path: Path, context: Context) -> None:
    with pytest.raises(BuildError) as caught:
        carry_out((_step("one", "echo no space left; exit 3", tmp_path),), tmp_path, context)
    assert "exit status 3" in caught.value.found
    assert "no space left" in caught.value.found
    assert isinstance(caught.value.__cause__, CommandError)
    assert "takes it up there" in caught.value.next_step
