"""The sweep: torch's samples of every operator on XLA, against torch's CPU kernels.

    ENVIRONMENT/bin/python tests/operators/sweep.py --op trace --op cumsum --show

Worker processes run the samples; one that dies, or hangs, is a row of the result and not its end.
``bench/operator_sweep.py`` compares the rows with those that are recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import plan

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import slices  # noqa: E402

PROCESSOR_SECONDS, SECONDS = 120.0, 1800.0
"""For the samples of one operator and dtype, which take less than one second, or for one of them by itself. A machine
that is busy with something else gives no processor time, and what waits for itself takes none."""

ENVIRONMENT = {
    "PJRT_DEVICE": "CPU",
    "PYTHONHASHSEED": "0",
    "XLA_COMPILATION_CACHE_SIZE": "1",  # nothing is compiled twice
    # Without the first max drops NaN, on XLA:CPU alone; with the second a program is compiled as one piece, sooner.
    "XLA_FLAGS": "--xla_cpu_enable_fast_min_max=false --xla_cpu_parallel_codegen_split_count=1",
}

Row = dict[str, Any]


class Worker:
    """A worker process. The child of it that runs the samples is followed by another when it has died."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        self._await_child()

    def _await_child(self) -> None:
        self._child = self._process.pid
        self._child = self._message()["ready"]

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _message(self) -> Row:
        """The next message. Raises queue.Empty if the child hangs."""
        begun, used = time.monotonic(), self._used()
        while True:
            try:
                line = self._lines.get(timeout=5)
            except queue.Empty:
                if self._used() - used > PROCESSOR_SECONDS or time.monotonic() - begun > SECONDS:
                    raise
                continue
            if line is None:
                raise RuntimeError("a worker of the sweep has ended: run tests/operators/worker.py by hand")
            message: Row = json.loads(line)
            return message

    def _used(self) -> float:
        """Seconds of processor time that the child has had."""
        with contextlib.suppress(FileNotFoundError):
            words = Path(f"/proc/{self._child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def run(self, op: str, dtype: str, kind: str, count: int) -> list[Row]:
        """The rows of one operator and dtype, of samples of a kind; of torch's own so many."""
        rows: list[Row] = []
        skip: list[list[Any]] = []
        together = True
        while True:
            assert self._process.stdin is not None
            job = {"op": op, "dtype": dtype, "of": kind, "count": count, "together": together, "skip": skip}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            ended = self._follow(rows, skip)
            if ended is None:
                return [{"op": op, "dtype": dtype, **row} for row in rows]
            kind, detail, (number, phase) = ended
            if phase == "together":  # each by itself, to see which of them it was
                rows.clear()
                skip.clear()
            else:
                skip += [[number, other] for other in (*plan.PHASES, phase)]
                rows.append({"number": number, "phase": phase, "kind": kind, "detail": detail})
            if phase == "samples":
                return [{"op": op, "dtype": dtype, **row} for row in rows]
            together = False

    def _follow(self, rows: list[Row], skip: list[list[Any]]) -> tuple[str, str, list[Any]] | None:
        """Take rows until the job is done: None, or how the child ended and where."""
        begun: list[Any] = [-1, "samples"]
        hangs = False
        while True:
            try:
                message = self._message()
            except queue.Empty:
                hangs = True
                os.kill(self._child, signal.SIGKILL)
                continue
            if "died" in message:
                self._await_child()
                if hangs:
                    return "hangs", f"no end after {PROCESSOR_SECONDS:g} s of processor time, or {SECONDS:g} s", begun
                return "dies", f"the process ended with status {message['died']}", begun
            if "done" in message:
                return None
            if "start" in message:
                begun = message["start"]
                skip.append(begun)
            elif _key(message) not in map(_key, rows):
                rows.append(message)

    def stop(self) -> None:
        """End the worker: its child ends with the last line."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _key(row: Row) -> tuple[Any, ...]:
    return row.get("number"), row.get("phase"), "chosen" in row, "fallback" in row


def sweep(pairs: list[plan.Pair], kind: str, count: int, workers: int) -> list[Row]:
    """The rows of all these operators and dtypes, in their order."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in range(len(pairs)):
        todo.put(i)
    found: dict[int, list[Row]] = {}
    begun = time.monotonic()

    def work() -> None:
        worker = Worker()
        try:
            while True:
                i = todo.get_nowait()
                found[i] = worker.run(*pairs[i], kind, count)
                if len(found) % 200 == 0:
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
    if len(found) != len(pairs):
        raise RuntimeError("a worker of the sweep has failed, see above")
    return [row for i in range(len(pairs)) for row in found[i]]


def all_pairs(kind: str) -> list[plan.Pair]:
    """Every operator and dtype of which there are samples of a kind; found in a process of its own, as it takes a while
    to import.
    """
    program = f"import json, samples; print(json.dumps(samples.pairs({kind!r})))"
    run = subprocess.run([sys.executable, "-c", program], cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    return [tuple(pair) for pair in json.loads(run.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the dtypes and samples that CI runs")
    parser.add_argument(
        "--kind",
        choices=plan.KINDS,
        default="torch",
        help="torch's own, special values, or one tensor in another dtype",
    )
    parser.add_argument("--of-the-day", action="store_true", help="one operator in four or eight, others each day")
    parser.add_argument("--samples", type=int, help=f"of each operator and dtype, at most {plan.ALL}")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--op", action="append", help="only these operators, by their full names")
    parser.add_argument("--dtype", action="append", choices=plan.DTYPES)
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--show", action="store_true", help="print what is not the same")
    options = parser.parse_args()
    pairs = all_pairs(options.kind)
    if options.quick:
        pairs = plan.quick(pairs)
    if options.of_the_day:
        today = set(slices.slice_of_day(dict.fromkeys(op for op, _ in pairs), plan.PARTS[options.kind]))
        pairs = [(op, dtype) for op, dtype in pairs if op in today]
    pairs = [
        (op, dtype)
        for op, dtype in pairs
        if (not options.op or op in options.op) and (not options.dtype or dtype in options.dtype)
    ]
    begun = time.monotonic()
    count = options.samples or (plan.QUICK if options.quick else plan.ALL)
    rows = sweep(pairs, options.kind, count, options.workers)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=0), encoding="utf-8")
    kinds = [row["kind"] for row in rows if "kind" in row]
    if options.show:
        for r in rows:
            if r.get("kind", "same") != "same":
                print(r["op"], r["dtype"], r["number"], r["phase"], r["kind"], r["detail"][:150])
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    print(f"{len(pairs)} operators and dtypes: {counted}; {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
