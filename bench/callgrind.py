"""Instructions of parts of a program, counted by valgrind's callgrind: `count` runs it, `counted` marks a part."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from side_by_side import need_valgrind

REQUESTS = """
#include "callgrind.h"
extern "C" void start() { CALLGRIND_START_INSTRUMENTATION; }
extern "C" void stop(const char *part) {
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(part);
}
"""


def count(python: Path, program: Path, *arguments: str, **environment: str) -> int:
    """The instructions that the program executes within `counted`, in all of its threads.

    Raises:
        SystemExit: There is no valgrind, or the program failed.
    """
    return sum(count_parts(python, program, *arguments, **environment).values())


def count_parts(python: Path, program: Path, *arguments: str, **environment: str) -> dict[str, int]:
    """The same for each part, by the name that `counted` got.

    Raises:
        SystemExit: There is no valgrind, or the program failed.
    """
    need_valgrind()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "callgrind"
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}"]
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        # One thread and a fixed hash seed make counts repeat.
        fixed = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"}
        result = subprocess.run(
            [*valgrind, str(python), str(program), *arguments],
            env={**os.environ, **fixed, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise SystemExit(f"{python} {program.name} {' '.join(arguments)} failed:\n{result.stderr}")
        counts: dict[str, int] = {}
        for dump in Path(folder).glob("callgrind.*"):
            text = dump.read_text()
            if part := re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE):
                total = int(re.findall(r"^totals: (\d+)", text, re.MULTILINE)[-1])
                counts[part[1]] = counts.get(part[1], 0) + total
        return counts


@contextlib.contextmanager
def counted(part: str = "counted") -> Iterator[None]:
    """A part of a program that counts; for programs that `count` runs."""
    with _requests() as requests:
        gc.collect()
        gc.disable()
        requests.start()
        try:
            yield
        finally:
            requests.stop(part.encode())
            gc.enable()


@contextlib.contextmanager
def _requests() -> Iterator[ctypes.PyDLL]:
    """Callgrind's switches, by the header that torch brings along."""
    import torch

    headers = Path(torch.__file__).parent / "utils" / "benchmark" / "utils" / "valgrind_wrapper"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "requests.cpp", Path(folder) / "requests.so"
        source.write_text(REQUESTS)
        command = ["g++", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        yield ctypes.PyDLL(str(library))
