"""The client of the TPU compiler: one long-lived worker process, and a cache of its results.

Only the standard library is used, so tests can import this beside any torch.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from castoff.core.errors import TpuError
from castoff.tpu.estimate import Estimate, estimate

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11

WORKER = Path(__file__).parent / "worker.py"

TIMEOUT = 1800
"""The time limit of a compilation, in seconds: whole models take minutes."""

_LOG_LINES = 15

_FOREIGN = ("JAX_", "LD_", "LIBTPU_", "PJRT_", "PYTHON", "TF_", "TPU_", "XLA_")
"""Prefixes of environment variables that would change the compilation."""

_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # libtpu's lock protects the device, which is never opened here
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "",
    "TPU_LOG_DIR": "disabled",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclass(frozen=True)
class Compiled:
    """A program that the TPU compiler compiled."""

    topology: str  # the topology that it is for
    hlo: str  # the optimised HLO, with its schedule
    # bytes on each device, by kind: ``argument``, ``output``, ``alias`` (outputs in the memory of arguments),
    # ``temp`` and ``generated_code``
    memory: dict[str, int]
    cached: bool  # whether it came from the cache

    @cached_property
    def estimate(self) -> Estimate:
        """What the compiler's estimates say, and what has none."""
        return estimate(self.hlo)

    @property
    def estimated_cycles(self) -> int:
        """The compiler's estimates, as often as their instructions run, or what transfers take, if that is more."""
        return self.estimate.cycles(self.topology)


class TpuCompiler:
    """The TPU compiler of one libtpu. Threads may share it; use it as a context manager, or close it.

    Args:
        python: The Python of the compiler's environment; see ``castoff.tpu.environment``.
    """

    def __init__(self, python: Path, cache: Path) -> None:
        self.python = python
        self._cache = cache
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        # The folder's name identifies its libtpu and jaxlib: it is a hash of their hashes.
        self._identity = f"{python.parent.parent.name} {_file_hash(WORKER)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compile(
        self,
        stablehlo: bytes,
        topology: str,
        partitions: int = 1,
        options: Mapping[str, str] | None = None,
    ) -> Compiled:
        """Compile a program, or find it in the cache.

        Args:
            stablehlo: The program: StableHLO text or portable bytecode.
            topology: A TPU topology, such as "v5e:2x2".
            partitions: The devices that the program's shardings are for; the first ones of the topology.
            options: Options of XLA or libtpu, such as ``{"xla_tpu_scoped_vmem_limit_kib": "32768"}``.

        Raises:
            TpuError: The topology is unknown, the program does not compile, or the compiler died.
        """
        job = {
            "stablehlo": base64.b64encode(stablehlo).decode(),
            "topology": topology,
            "partitions": partitions,
            "options": dict(sorted((options or {}).items())),
        }
        key = hashlib.sha256(json.dumps([self._identity, job], sort_keys=True).encode()).hexdigest()
        path = self._cache / key[:2] / f"{key}.json"
        answer = _read(path)
        cached = answer is not None
        if answer is None:
            answer = self._ask(job)
            _write(path, answer)
        return Compiled(topology, answer["hlo"], answer["memory"], cached)

    def devices(self, topology: str) -> int:
        """Return the number of devices of a topology.

        Raises:
            TpuError: libtpu knows no such topology.
        """
        return int(self._ask({"topology": topology})["devices"])

    def close(self) -> None:
        """End the worker; the next job starts another one."""
        with self._lock:
            self._stop()

    def _ask(self, job: Mapping[str, object]) -> dict[str, Any]:
        with self._lock:
            worker = self._worker if self._worker is not None else self._start()
            assert worker.stdin is not None
            assert worker.stdout is not None
            deadline = threading.Timer(TIMEOUT, worker.kill)
            deadline.start()
            try:
                worker.stdin.write(json.dumps(job) + "\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
            except BrokenPipeError:
                line = ""
            except BaseException:
                # An answer may still come: it must not be read as the next job's.
                self._stop()
                raise
            finally:
                deadline.cancel()
            if not line:
                raise self._died(f"an answer for {job['topology']} within {TIMEOUT} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise _refused(answer["error"], str(job["topology"]))
        return answer

    def _start(self) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        environment.update(_ENVIRONMENT)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker lives
        try:
            self._worker = subprocess.Popen(
                [self.python, "-I", WORKER],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError as error:
            self._stop()
            raise TpuError(
                "the TPU compiler cannot be started",
                expected=f"a Python at {self.python}",
                found=str(error.strerror),
                next_step="Make its environment again: castoff tpu environment",
            ) from error
        assert self._worker.stdout is not None
        if not self._worker.stdout.readline():
            raise self._died("jaxlib and libtpu can be imported")
        return self._worker

    def _died(self, expected: str) -> TpuError:
        """Remove a dead worker and return the error about it."""
        assert self._worker is not None
        assert self._log is not None
        status = self._worker.wait()
        self._log.seek(0)
        log = self._log.read().decode(errors="replace").rstrip().splitlines()[-_LOG_LINES:]
        self._stop()
        return TpuError(
            "the TPU compiler died",
            expected=expected,
            found="\n".join([f"exit status {status}; it ended with", *(log or ["(no output)"])]),
            next_step="Try a smaller program to find what it cannot compile, or another topology.",
        )

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            with worker:
                pass
        log, self._log = self._log, None
        if log is not None:
            log.close()


def _refused(error: Mapping[str, str], topology: str) -> TpuError:
    summaries = {
        "topology": f"the TPU compiler knows no topology {topology}",
        "partitions": f"{topology} has fewer devices",
        "stablehlo": "the program is not StableHLO",
        "program": f"the program does not compile for {topology}",
    }
    next_steps = {
        "topology": "Choose one of them, or of the generations in castoff tpu compile --help.",
        "partitions": "Choose a larger topology, or shard the program over fewer devices.",
        "stablehlo": "Pass what torch_xla traces, unchanged.",
        "program": "Read the compiler's message.",
    }
    kind = error["kind"]
    return TpuError(summaries[kind], expected=error["expected"], found=error["found"], next_step=next_steps[kind])


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    """Return a result of the cache; None if there is none, or only a damaged one."""
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) and answer.keys() >= {"hlo", "memory"} else None


def _write(path: Path, answer: Mapping[str, object]) -> None:
    """Put a result into the cache, in one step. A cache that is not writable is not an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(answer, file)
            Path(name).rename(path)
        except BaseException:
            Path(name).unlink()
            raise
