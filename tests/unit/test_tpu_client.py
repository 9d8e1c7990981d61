"""The client of the TPU compiler, against a worker that only pretends to compile."""

import os
import sys
import threading
from pathlib import Path

import pytest

from castoff.core.errors import TpuError
from castoff.tpu import client
from castoff.tpu.client import TpuCompiler

WORKER = """
import base64, json, os, sys
print(json.dumps({}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["topology"] == "dies":
        print("F0000 check failed", file=sys.stderr, flush=True)
        os._exit(6)
    if job["topology"] == "unknown":
        answer = {"error": {"kind": "topology", "expected": "v5e:2x2", "found": "no such"}}
    elif "stablehlo" not in job:
        answer = {"devices": 4}
    else:
        open(sys.argv[0] + ".jobs", "a").write(line)
        noise = sorted(k for k in os.environ if k.startswith(("TPU_", "XLA_", "LIBTPU_", "JAX_", "PYTHON")))
        hlo = 'ENTRY %main () -> f32[] {\\n  ROOT %a = f32[] constant(0), {"estimated_cycles":"42"}\\n}\\n'
        hlo = base64.b64decode(job["stablehlo"]).decode() + " \\n" + hlo
        answer = {"hlo": hlo + " ".join(noise), "memory": {"temp": 1}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    monkeypatch.setattr(client, "WORKER", path)
    return path


@pytest.fixture
def compiler(worker: Path, tmp_path: Path) -> TpuCompiler:
    return TpuCompiler(Path(sys.executable), tmp_path / "results")


def jobs(worker: Path) -> int:
    return len(worker.with_name("worker.py.jobs").read_text().splitlines())


def test_a_program_is_compiled_once(compiler: TpuCompiler, worker: Path, tmp_path: Path) -> None:
    with compiler:
        first = compiler.compile(b"program", "v5e:2x2")
        assert (first.estimated_cycles, first.memory, first.cached) == (42, {"temp": 1}, False)
        assert compiler.compile(b"program", "v5e:2x2").cached
    with TpuCompiler(Path(sys.executable), tmp_path / "results") as other:
        again = other.compile(b"program", "v5e:2x2")
        assert again.cached
        assert again.hlo == first.hlo
    assert jobs(worker) == 1


def test_whatever_matters_is_part_of_the_key(compiler: TpuCompiler, worker: Path, tmp_path: Path) -> None:
    with compiler:
        compiler.compile(b"program", "v5e:2x2")
        compiler.compile(b"another", "v5e:2x2")
        compiler.compile(b"program", "v6e:2x2")
        compiler.compile(b"program", "v5e:2x2", 4)
        compiler.compile(b"program", "v5e:2x2", options={"xla_a": "1"})
        assert jobs(worker) == 5
        compiler.compile(b"program", "v5e:2x2", options={"xla_b": "2", "xla_a": "1"})
        compiler.compile(b"program", "v5e:2x2", options={"xla_a": "1", "xla_b": "2"})
        assert jobs(worker) == 6
    linked = tmp_path / "another-libtpu" / "bin" / "python"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(sys.executable)
    with TpuCompiler(linked, tmp_path / "results") as other:
        other.compile(b"program", "v5e:2x2")
    assert jobs(worker) == 7


def test_the_users_settings_do_not_reach_the_compiler(compiler: TpuCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_x=1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_y")
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "0")
    with compiler:
        said = compiler.compile(b"program", "v5e:2x2").hlo
    assert not any(name in said for name in ("LIBTPU_INIT_ARGS", "XLA_FLAGS", "TPU_VISIBLE_CHIPS"))
    assert "TPU_SKIP_MDS_QUERY" in said


def test_a_refusal_says_what_was_expected_and_leaves_the_worker_be(compiler: TpuCompiler) -> None:
    with compiler:
        with pytest.raises(TpuError, match="knows no topology unknown") as caught:
            compiler.compile(b"program", "unknown")
        assert caught.value.expected == "v5e:2x2"
        assert compiler.devices("v5e:2x2") == 4


def test_a_dead_worker_is_told_of_and_replaced(compiler: TpuCompiler) -> None:
    with compiler:
        with pytest.raises(TpuError, match="died") as caught:
            compiler.devices("dies")
        assert "exit status 6" in caught.value.found
        assert "check failed" in caught.value.found
        assert compiler.devices("v5e:2x2") == 4


def test_an_environment_that_is_gone(worker: Path, tmp_path: Path) -> None:
    with TpuCompiler(tmp_path / "nowhere" / "python", tmp_path) as gone, pytest.raises(TpuError, match="started"):
        gone.devices("v5e:2x2")


def test_a_worker_that_cannot_import(worker: Path, compiler: TpuCompiler) -> None:
    worker.write_text("import no_such_module")
    with compiler, pytest.raises(TpuError, match="died") as caught:
        compiler.devices("v5e:2x2")
    assert "no_such_module" in caught.value.found


def test_a_damaged_result_is_made_again(compiler: TpuCompiler, tmp_path: Path) -> None:
    with compiler:
        first = compiler.compile(b"program", "v5e:2x2")
        (path,) = (tmp_path / "results").rglob("*.json")
        path.write_text(path.read_text()[:-5])
        again = compiler.compile(b"program", "v5e:2x2")
    assert not again.cached
    assert again.hlo == first.hlo


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_cache_that_cannot_be_written_is_done_without(worker: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir(mode=0o500)
    with TpuCompiler(Path(sys.executable), results) as compiler:
        assert not compiler.compile(b"program", "v5e:2x2").cached


def test_threads_share_one_worker(compiler: TpuCompiler) -> None:
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = compiler.compile(str(number).encode(), "v5e:2x2").hlo

    with compiler:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(hlo.startswith(f"{number} ") for number, hlo in answers.items())
    assert len(answers) == 8
