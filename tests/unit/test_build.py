"""The whole pipeline on made-up wheels: what comes out, and what stays when something goes wrong."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import PYTHON, TORCH_COMMIT, Tree

from castoff.builder.pipeline import build
from castoff.builder.plan import Request, dry_run
from castoff.builder.recorded import verify_folder
from castoff.builder.verify import check_slots
from castoff.core.console import Console
from castoff.core.errors import CastoffError, DistError, FetchError, MachineError, PinError, VerifyError
from castoff.core.places import ROOT


@pytest.fixture
def request_(warm_tree: Tree) -> Request:
    return Request("cpu", "2.9", None, (), warm_tree.root / "dist", verify_install=False, root=warm_tree.root)


@pytest.fixture
def cold(request_: Request) -> None:
    """Nothing is in the cache."""
    shutil.rmtree(request_.root.parent / "cache")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.usefixtures("cold")
def test_the_whole_way(request_: Request, console: Console, log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(replace(request_, verify_install=True), console)
    assert folder == request_.out / "2.9-cpu"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["verified"] == {
        "structure": True,
        "symbol_versions": True,
        "installed": True,
        "skipped": "",
        "interpositions": {"_ZN5torch6answerEv": 1},
    }
    assert [topic["name"] for topic in manifest["topics"]] == ["torch/answer", "torch_xla/xla"]
    assert (folder / "constraints.txt").read_text() == "torch==2.9.0+castoff.3\ntorch_xla==2.9.0+castoff.3\n"
    torch = zipfile.ZipFile(next(folder.glob("torch-2.9.0+castoff.3-*.whl")))
    assert torch.read("torch/_answer.py") == b"answer = 42\n"
    assert b'TOPICS = {\n    "answer": ""\n}' in torch.read("torch/_castoff_topics.py")
    assert b"third = 30\n" in torch.read("torch/other.py")
    assert b"__version__ = '2.9.0+castoff.3'" in torch.read("torch/version.py")
    assert TORCH_COMMIT.encode() in torch.read("torch/lib/libcastoff_torch.so")
    assert b"\nVersion: 2.9.0+castoff.3\n" in torch.read("torch-2.9.0+castoff.3.dist-info/METADATA")
    xla = zipfile.ZipFile(next(folder.glob("torch_xla-*.whl")))
    assert b"\nRequires-Dist: torch==2.9.0+castoff.3\n" in xla.read("torch_xla-2.9.0+castoff.3.dist-info/METADATA")
    assert "1 interposed symbols lead to the overlay" in log.getvalue()
    verified = verify_folder(folder, python=None, indexes=(), install=True, console=console, root=request_.root)
    assert verified.installed
    # From whatever folder: as docs/overlay.md writes it.
    monkeypatch.chdir(request_.out)
    relative = Path("2.9-cpu")
    assert verify_folder(relative, python=None, indexes=(), install=True, console=console, root=request_.root).installed
    # Nothing else is left anywhere.
    assert sorted(path.name for path in request_.out.iterdir()) == [".2.9-cpu.lock", "2.9-cpu"]
    assert not any((request_.root.parent / "cache" / "tmp").iterdir())


def test_for_a_tpu(request_: Request, console: Console, log: io.StringIO) -> None:
    """libtpu beside the wheels, by hash; the wheels are those of the other target, and checked once."""
    cpu = build(replace(request_, verify_install=True), console)
    folder = build(replace(request_, target="tpu", verify_install=True), console)
    assert folder == request_.out / "2.9-tpu"
    assert "reuse    the wheels in 2.9-cpu" in log.getvalue()
    assert log.getvalue().count("interposed symbols lead to the overlay") == 1
    for wheel in cpu.glob("*.whl"):
        assert (folder / wheel.name).samefile(wheel)
    assert "libtpu==0.0.21\n" in (folder / "constraints.txt").read_text()
    install = (folder / "INSTALL.txt").read_text()
    assert "pip install -c constraints.txt --find-links . torch torch_xla libtpu" in install
    assert "GPUs" not in install
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["libtpu"]["file"] in {path.name for path in folder.iterdir()}
    assert manifest["cuda_packages"] == []
    assert manifest["wheels"] == json.loads((cpu / "manifest.json").read_text())["wheels"]
    assert verify_folder(folder, python=None, indexes=(), install=True, console=console, root=request_.root).installed
    (folder / manifest["libtpu"]["file"]).unlink()
    with pytest.raises(VerifyError, match="libtpu"):
        verify_folder(folder, python=None, indexes=(), install=False, console=console, root=request_.root)


def test_wheels_of_another_target_that_differ_are_not_taken(request_: Request, console: Console) -> None:
    other = build(request_, console)
    (request_.root / "patches/torch/answer/files/torch/_answer.py").write_text("answer = 43\n")
    folder = build(replace(request_, target="tpu"), console)
    torch = next(folder.glob("torch-*.whl"))
    assert not torch.samefile(other / torch.name)
    assert zipfile.ZipFile(torch).read("torch/_answer.py") == b"answer = 43\n"


def test_damaged_wheels_of_another_target_are_not_taken(request_: Request, console: Console) -> None:
    other = build(request_, console)
    wheel = next(other.glob("torch_xla-*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    folder = build(replace(request_, target="tpu"), console)
    assert zipfile.ZipFile(folder / wheel.name).testzip() is None


def test_a_cuda_base_is_told_of(full_tree: Tree, request_: Request, console: Console, log: io.StringIO) -> None:
    full_tree.requires = ("nvidia-cublas-cu12==12.8.4.1", "numpy")
    full_tree.finish()
    folder = build(replace(request_, target="tpu"), console)
    assert json.loads((folder / "manifest.json").read_text())["cuda_packages"] == ["nvidia-cublas-cu12"]
    assert "3 GB" in log.getvalue()
    assert "--index https://download.pytorch.org/whl/cpu" in (folder / "INSTALL.txt").read_text()


def test_the_index_of_a_variant_asks_for_that_variant(full_tree: Tree, request_: Request, console: Console) -> None:
    """Even where the cache has another one."""
    build(request_, console)
    pin = full_tree.root / "pins" / "2.9.toml"
    other = '[variants.cpu]\ntitle = "another"\nindex = "https://example.org/cpu"\n'
    entry = f'[wheels.torch.cpu]\n"{PYTHON}" = "{"c" * 64}"\n'
    pin.write_text(pin.read_text() + other + entry)
    with pytest.raises(FetchError) as caught:
        build(replace(request_, indexes=("https://example.org/cpu",)), console)
    assert "c" * 64 in caught.value.expected
    assert "any" not in caught.value.expected


def test_two_builds_give_the_same_bytes(request_: Request, console: Console) -> None:
    first = _contents(build(request_, console))
    shutil.rmtree(request_.root.parent / "cache")
    os.utime(request_.root / "patches/torch/answer/files/torch/_answer.py", (1, 1))
    assert _contents(build(replace(request_, out=request_.root / "other"), console)) == first


def test_two_builds_at_once(request_: Request) -> None:
    failures: list[BaseException] = []

    def run(out: str) -> None:
        try:
            build(replace(request_, out=request_.root / out), Console(out=io.StringIO(), err=io.StringIO()))
        except BaseException as error:  # noqa: BLE001 - the main thread judges it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(out,)) for out in ("dist", "dist", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert _contents(request_.out / "2.9-cpu") == _contents(request_.root / "other" / "2.9-cpu")


def test_no_topics_at_all(tree: Tree, console: Console) -> None:
    tree.finish()
    request = Request("cpu", "2.9", None, (), tree.root / "dist", verify_install=False, root=tree.root)
    manifest = json.loads((build(request, console) / "manifest.json").read_text())
    assert manifest["topics"] == []
    assert manifest["overlays"] == {}
    assert manifest["verified"]["skipped"] == "--no-verify-install"


@pytest.mark.usefixtures("cold")
def test_dry_run_shows_the_plan_and_writes_nothing(request_: Request, console: Console, log: io.StringIO) -> None:
    dry_run(request_, console)
    assert "apply    torch/answer: a title, 2 C++ source(s)" in log.getvalue()
    assert "repack   torch 2.9.0+castoff.3" in log.getvalue()
    assert not request_.out.exists()
    assert not (request_.root.parent / "cache").exists()


def _fails(request: Request, console: Console, kind: type[CastoffError]) -> CastoffError:
    """Build, expect trouble, and check that the output folder is as it was."""
    target = request.out / f"{request.pin}-{request.target}"
    before = _contents(target) if target.exists() else None
    with pytest.raises(kind) as caught:
        build(request, console)
    assert (_contents(target) if target.exists() else None) == before
    assert not (request.out / f".{target.name}.new").exists()
    return caught.value


@pytest.mark.usefixtures("cold")
def test_no_network(request_: Request, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(request_.root / "nowhere"))
    error = _fails(request_, console, FetchError)
    assert "one of these sha256" in error.expected
    assert "--index" in error.next_step


@pytest.mark.usefixtures("cold")
def test_the_cache_makes_the_network_needless(
    request_: Request, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(request_, console)
    monkeypatch.setenv("PIP_FIND_LINKS", str(request_.root / "nowhere"))
    build(request_, console)


@pytest.mark.usefixtures("cold")
def test_another_file_of_the_same_name_is_refused(full_tree: Tree, request_: Request, console: Console) -> None:
    wheel = next(full_tree.wheels.glob("torch-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"more")
    _fails(request_, console, FetchError)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"x" + data[1:]])
def test_a_damaged_file_in_the_cache_is_fetched_again(
    request_: Request, console: Console, log: io.StringIO, damage: object
) -> None:
    before = _contents(build(request_, console))
    wheel = next((request_.root.parent / "cache" / "sha256").glob("*/torch-*.whl"))
    wheel.write_bytes(damage(wheel.read_bytes()))  # type: ignore[operator]
    assert _contents(build(request_, console)) == before
    assert f"expected sha256 {wheel.parent.name}, found " in log.getvalue()


def test_a_damaged_file_that_cannot_be_fetched_again_does_not_stay(
    request_: Request, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(request_, console)
    wheel = next((request_.root.parent / "cache" / "sha256").glob("*/torch-*.whl"))
    wheel.write_bytes(b"")
    monkeypatch.setenv("PIP_FIND_LINKS", str(request_.root / "nowhere"))
    _fails(request_, console, FetchError)
    assert not wheel.exists()


def test_no_compiler(request_: Request, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "apt-get install g++" in _fails(request_, console, MachineError).next_step


@pytest.mark.parametrize("python", ["no/such/python", "/bin/true"])
def test_no_such_python(request_: Request, console: Console, python: str) -> None:
    _fails(replace(request_, python=python), console, MachineError)


def test_a_python_that_upstream_has_no_wheel_for(request_: Request, console: Console) -> None:
    assert PYTHON in _fails(replace(request_, python="3.7"), console, PinError).expected


def test_something_else_in_the_place_of_the_output(request_: Request, console: Console) -> None:
    request_.out.mkdir()
    (request_.out / "2.9-cpu").write_text("mine")
    with pytest.raises(DistError):
        build(request_, console)
    assert (request_.out / "2.9-cpu").read_text() == "mine"


def test_a_failed_build_keeps_its_logs_and_the_next_one_clears_them(
    full_tree: Tree, request_: Request, console: Console
) -> None:
    source = full_tree.root / "patches/torch/answer/files/torch/csrc/better.cpp"
    right = source.read_text()
    source.write_text("#error wrong\n")
    _fails(request_, console, CastoffError)
    assert any((request_.out / "logs" / "2.9-cpu").glob("*-compile.log"))
    source.write_text(right)
    build(request_, console)
    assert not (request_.out / "logs").exists()


def test_a_changed_wheel_does_not_verify(request_: Request, console: Console) -> None:
    folder = build(request_, console)
    wheel = next(folder.glob("torch_xla-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(VerifyError, match="not the wheel that was built"):
        verify_folder(folder, python=None, indexes=(), install=False, console=console, root=request_.root)


def test_a_folder_that_castoff_did_not_build_does_not_verify(tmp_path: Path, console: Console) -> None:
    with pytest.raises(VerifyError, match="not a folder that castoff built"):
        verify_folder(tmp_path, python=None, indexes=(), install=False, console=console)


def test_a_slot_that_leads_elsewhere_is_named() -> None:
    check_slots({"libtorch_cpu.so": {"f": ["/x/libcastoff_torch.so"]}})
    with pytest.raises(VerifyError) as caught:
        check_slots({"libtorch_cpu.so": {"f": ["/x/libcastoff_torch.so", "/x/libtorch_cpu.so"]}})
    assert caught.value.summary == "f is not interposed"
    assert caught.value.expected == "libtorch_cpu.so calls it in libcastoff_torch.so"
    assert caught.value.found == "it calls it in /x/libtorch_cpu.so"


def test_interposing_what_nothing_calls_is_an_error(full_tree: Tree, request_: Request, console: Console) -> None:
    toml = full_tree.root / "patches/torch/answer/topic.toml"
    toml.write_text(
        toml.read_text()
        .replace('exports = ["castoff_commit"]', "exports = []")
        .replace('"_ZN5torch6answerEv"', '"_ZN5torch6answerEv", "castoff_commit"')
    )
    error = _fails(replace(request_, verify_install=True), console, VerifyError)
    assert "castoff_commit has no effect" in error.summary


# The command line, in a process of its own.

_PROGRAM = """
import pathlib, sys
import castoff.core.places
castoff.core.places.ROOT = pathlib.Path(sys.argv.pop(1))
from castoff.cli.main import main
main()
"""


def _command(request: Request, *options: str, prefix: tuple[str, ...] = ()) -> list[str]:
    command = [*prefix, sys.executable, "-c", _PROGRAM, str(request.root), "build", "--target", "cpu"]
    return [*command, "--no-verify-install", "--out", str(request.out), *options]


def _run(request: Request, *options: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(request, *options, prefix=prefix), cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_command_line(request_: Request) -> None:
    completed = _run(request_, "-v")
    assert completed.returncode == 0, completed.stderr
    install = "pip install -c constraints.txt --find-links . torch torch_xla"
    assert completed.stdout == f"built {request_.out}/2.9-cpu\ninstall it, from within that folder: {install}\n"
    assert "g++ --version" in completed.stderr
    assert "warning  the wheels were not installed" in completed.stderr
    assert "\x1b" not in completed.stderr


def test_the_command_line_for_programs(request_: Request) -> None:
    completed = _run(request_, "--json")
    events = [json.loads(line) for line in completed.stdout.splitlines()]
    steps = [event["name"] for event in events if event["event"] == "step" and event["state"] == "done"]
    assert steps == ["pin", "fetch", "compile", "apply", "repack", "verify"]
    assert events[-1]["event"] == "result"
    (request_.root / "CHANGELOG.md").unlink()
    completed = _run(request_, "--json")
    event = json.loads(completed.stdout.splitlines()[-1])
    assert completed.returncode == event["exit_code"] == 18
    assert event["kind"] == "changelog"
    assert completed.stderr == ""


def test_an_error_says_expected_found_and_next(request_: Request) -> None:
    (request_.root / "CHANGELOG.md").write_text("")
    completed = _run(request_)
    assert completed.returncode == 18
    assert completed.stderr.splitlines()[1:] == [
        "error    the release number is unknown",
        "expected   CHANGELOG.md has a heading like '## [castoff.1] - 2026-11-21'",
        "   found   no such heading",
        "    next   Add the heading of the release that you are building.",
    ]


def test_a_file_size_limit(request_: Request) -> None:
    assert _run(request_).returncode == 0
    before = _contents(request_.out / "2.9-cpu")
    (request_.root / "patches/torch/answer/files/torch/_answer.py").write_text("answer = 43\n")
    completed = _run(request_, prefix=("prlimit", "--fsize=4096"))
    assert completed.returncode == 21, completed.stderr
    assert "error    " in completed.stderr
    assert _contents(request_.out / "2.9-cpu") == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "castoff-test", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(request_: Request, small_disk: Path) -> None:
    (small_disk / "dist").mkdir()
    request = replace(request_, out=small_disk / "dist")
    (small_disk / "ballast").write_bytes(bytes(30000))
    completed = _run(request)
    assert completed.returncode == 21, completed.stderr
    assert "No space left on device" in completed.stderr
    assert "Free some space" in completed.stderr
    assert not (request.out / "2.9-cpu").exists()


def test_a_read_only_cache(request_: Request, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    monkeypatch.setenv("CASTOFF_CACHE", str(small_disk / "cache"))
    completed = _run(request_)
    assert completed.returncode == 21, completed.stderr
    assert "Read-only file system" in completed.stderr
    assert "CASTOFF_CACHE" in completed.stderr


def _heed_interrupts() -> None:
    """A shell lets what it starts in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_at_any_moment(request_: Request, number: int) -> None:
    assert _run(request_).returncode == 0
    out = request_.out / "2.9-cpu"
    before = _contents(out)
    # Another version, so that the old output and the new one cannot be confused.
    (request_.root / "CHANGELOG.md").write_text("## [castoff.4] - 2026-11-22\n")
    whole = {"old": 0, "new": 0}
    for delay in (0.2, 0.4, 0.6, 0.9, 1.3):
        process = subprocess.Popen(
            _command(request_),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_heed_interrupts,  # noqa: PLW1509 - no thread runs here
        )
        time.sleep(delay)
        process.send_signal(number)
        process.wait()
        after = _contents(out)
        if after == before:
            whole["old"] += 1
        else:
            assert sum(b"castoff.4" in name.encode() for name in after) == 2
            whole["new"] += 1
            # Each moment is tried on the old output: Python can drop one interrupt that comes in a callback.
            shutil.rmtree(out)
            out.mkdir()
            for name, content in before.items():
                (out / name).write_bytes(content)
    assert whole["old"] > 0
    assert _run(request_).returncode == 0
    assert sorted(path.name for path in request_.out.iterdir()) == [".2.9-cpu.lock", "2.9-cpu"]
