"""The sweep: torch's samples of every operator on XLA, against torch's CPU kernels.

    PJRT_DEVICE=CPU ENVIRONMENT/bin/python tests/operators/sweep.py --samples 6 --json OUT.json

Worker processes run the samples; one that dies, or hangs, is a row of the result and not its end.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TIMEOUT = 90.0
"""Seconds for one phase of one sample."""

QUICK, ALL = 2, 6
"""Samples of each operator and dtype."""


PHASES = ("forward", "gradient", "alias")


class Worker:
    """A worker process, started again when it has died."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def _start(self) -> None:
        environment = {**os.environ, "XLA_COMPILATION_CACHE_SIZE": "1", "PJRT_DEVICE": "CPU"}
        environment.setdefault("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=false")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._lines = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        if self._message(300) != {"ready": True}:
            raise RuntimeError("a worker of the sweep does not start: run tests/operators/worker.py by hand")

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _message(self, timeout: float) -> dict[str, Any] | None:
        line = self._lines.get(timeout=timeout)
        return None if line is None else json.loads(line)

    def run(self, op: str, dtype: str, count: int) -> list[dict[str, Any]]:
        """The results of one operator and dtype."""
        results: list[dict[str, Any]] = []
        skip: list[list[Any]] = []
        while True:
            if self._process is None:
                self._start()
            assert self._process is not None and self._process.stdin is not None
            job = {"op": op, "dtype": dtype, "count": count, "skip": skip, "only": self._only}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            death = self._follow(results, skip)
            if death is None:
                return [{"op": op, "dtype": dtype, **result} for result in results]
            number, phase = death[1]
            skip += [[number, other] for other in PHASES if [number, other] not in skip]
            results.append({"number": number, "phase": phase, "outcome": "raises", "at": "crash", "detail": death[0]})

    def _follow(self, results: list[dict[str, Any]], skip: list[list[Any]]) -> tuple[str, list[Any]] | None:
        begun: list[Any] = [-2, "samples"]
        while True:
            try:
                message = self._message(TIMEOUT)
            except queue.Empty:
                self.stop()
                return f"no end after {TIMEOUT:g} s", begun
            if message is None:
                assert self._process is not None
                code = self._process.wait()
                self._process = None
                return f"the process ended with status {code}", begun
            if "done" in message:
                return None
            if "start" in message:
                begun = message["start"]
                if begun not in skip:
                    skip.append(begun)
            elif "outcome" in message:
                results.append(message)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def sweep(pairs: list[tuple[str, str]], count: int, workers: int, progress: bool = False, only: str | None = None) -> list[dict[str, Any]]:
    """The results of all these operators and dtypes, in their order."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in range(len(pairs)):
        todo.put(i)
    found: dict[int, list[dict[str, Any]]] = {}
    begun = time.monotonic()

    def work() -> None:
        worker = Worker(only)
        try:
            while True:
                i = todo.get_nowait()
                found[i] = worker.run(*pairs[i], count)
                if progress and len(found) % 200 == 0:
                    print(f"{len(found)} of {len(pairs)}, {time.monotonic() - begun:.0f} s", file=sys.stderr)
        except queue.Empty:
            pass
        finally:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [result for i in range(len(pairs)) for result in found.get(i, [])]


def all_pairs() -> list[tuple[str, str]]:
    """Every operator and dtype that the CPU has; found in a process of its own, as it takes a while to import."""
    program = (
        "import json, samples as s\n"
        "pairs = [(n, d) for n, op in s.operators().items() for d in s.DTYPES if s.supported(op, s.DTYPES[d])]\n"
        "print(json.dumps(pairs))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    return [tuple(pair) for pair in json.loads(run.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=ALL)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--op", action="append", help="only these operators, by their full names")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--only", choices=PHASES, help="only this part of each sample")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="print what is not the same")
    options = parser.parse_args()
    pairs = [
        (op, dtype)
        for op, dtype in all_pairs()
        if (not options.op or op in options.op) and (not options.dtype or dtype in options.dtype)
    ]
    begun = time.monotonic()
    results = sweep(pairs, options.samples, options.workers, progress=True, only=options.only)
    if options.json:
        options.json.write_text(json.dumps(results, indent=0))
    if options.show:
        for r in results:
            if r["outcome"] != "same":
                print(r["op"], r["dtype"], r["number"], r["phase"], r["outcome"], r.get("at", ""), r["detail"][:150])
    outcomes = [r["outcome"] for r in results]
    counted = ", ".join(f"{outcomes.count(o)} {o}" for o in ("same", "silent", "raises"))
    print(f"{len(pairs)} pairs, {counted}, {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
