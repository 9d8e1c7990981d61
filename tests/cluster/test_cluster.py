"""The examples for clusters: a training on four devices whose worker is killed goes on as if nothing had been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cluster"
SMALL = ["--steps", "14", "--every", "4", "--width", "32", "--layers", "1", "--batch", "16"]

# Runs train.py, and kills it without a warning in its seventh step, once.
DIES_ONCE = """
import os, signal, sys
from pathlib import Path

program = Path(sys.argv[1])
sys.argv[:] = sys.argv[1:]
sys.path.insert(0, str(program.parent))
import train

killed, take_step, taken = program.with_name("killed"), train.Training.step, []

def step(self, tokens):
    taken.append(tokens)
    if len(taken) == 7 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return take_step(self, tokens)

train.Training.step = step
train.main()
"""

# What the scripts call on a host. The hosts are this one: ssh and srun run their command here, and the container
# engine what comes after the image's name, with the folders where they are outside.
HOST = {
    "ssh": r"""
while [[ $1 == -o ]]; do shift 2; done
echo "ssh $1" >>"$SHARED/log"
shift
exec bash -c "$*"
""",
    "srun": r"""
[[ $1 != --* ]] || shift
exec "$@"
""",
    "docker": r"""
echo "docker $1" >>"$SHARED/log"
[[ $1 == run ]] || exit 0
while [[ $1 != "$IMAGE" ]]; do shift; done
shift 2
cd / && exec "$PYTHON" "$SHARED/dies_once.py" "${@//\/shared/$SHARED}"
""",
}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """This machine as the only host, with the shared folder filled as the scripts say."""
    programs, shared = tmp_path / "bin", tmp_path / "shared"
    programs.mkdir()
    shared.mkdir()
    for name, text in HOST.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\nset -eu\n{text}")
        (programs / name).chmod(0o755)
    for name in ("train.py", "worker.sh"):
        (shared / name).write_bytes((EXAMPLES / name).read_bytes())
        (shared / name).chmod(0o755)
    (shared / "dies_once.py").write_text(DIES_ONCE)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for name, value in {
        "SHARED": shared,
        "CACHE": tmp_path / "cache",
        "IMAGE": "image",
        "PYTHON": sys.executable,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    return shared


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The losses of a run that nobody interrupts."""
    folder = tmp_path_factory.mktemp("unbroken")
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    command = [sys.executable, EXAMPLES / "train.py", "--checkpoints", folder, *SMALL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 devices, 1 processes, from step 0" in done.stdout
    return losses(folder)


def losses(folder):
    rows = [json.loads(line) for line in (folder / "loss.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss"] for row in rows]


@pytest.mark.parametrize("start", [["bash", "ssh.sh", "one"], ["bash", "slurm.sbatch"]], ids=["ssh", "slurm"])
def test_a_killed_worker_is_started_again_and_the_losses_are_those_of_an_unbroken_run(host, unbroken, start):
    done = subprocess.run([*start, *SMALL], cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("a worker died: all start again from the newest checkpoint") == 1
    assert "from step 0\n" in said
    assert "from step 4\n" in said
    assert losses(host / "checkpoints") == unbroken
    assert unbroken[-1] < unbroken[0]
    assert sorted(path.name for path in (host / "checkpoints").glob("step-*")) == ["step-00000012", "step-00000014"]


def test_a_checkpoint_that_was_cut_short_is_passed_over(host, unbroken):
    checkpoints = host / "checkpoints"
    command = [sys.executable, EXAMPLES / "train.py", "--checkpoints", checkpoints, *SMALL]
    short = [*command, "--steps", "8"]
    done = subprocess.run(short, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (checkpoints / "step-00000008" / ".metadata").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "from step 4\n" in done.stdout
    assert losses(checkpoints) == unbroken


@pytest.mark.parametrize("start", [["bash", "ssh.sh", "one two"], ["bash", "slurm.sbatch"]], ids=["ssh", "slurm"])
def test_a_training_that_never_works_ends(host, monkeypatch, start):
    monkeypatch.setenv("PYTHON", "false")
    monkeypatch.setenv("RESTARTS", "2")
    done = subprocess.run(start, cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "a worker died, 2 restarts did not help" in done.stderr
    log = (host / "log").read_text().splitlines()
    assert log.count("docker run") == (3 if len(start) == 2 else 6)
