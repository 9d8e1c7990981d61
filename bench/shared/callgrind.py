"""Instructions of parts of a program, counted by valgrind's callgrind: `count` runs it, `counted` marks a part."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shared.side_by_side import need_valgrind

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
    parts = count_objects(python, program, *arguments, **environment)
    return {part: sum(objects.values()) for part, objects in parts.items()}


def count_objects(python: Path, program: Path, *arguments: str, **environment: str) -> dict[str, dict[str, int]]:
    """The same for each part and each object, by its path: the libraries and the executable whose code it is.

    What a library calls in another one counts for the other one.

    Raises:
        SystemExit: There is no valgrind, or the program failed.
    """
    need_valgrind()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "callgrind"
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}"]
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
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
        counts: dict[str, Counter[str]] = {}
        for dump in Path(folder).glob("callgrind.*"):
            text = dump.read_text()
            if part := re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE):
                found = by_object(text)
                total = int(re.findall(r"^totals: (\d+)", text, re.MULTILINE)[-1])
                assert sum(found.values()) == total, f"{dump.name}: {sum(found.values())} of {total} instructions"
                counts.setdefault(part[1], Counter()).update(found)
        return {part: dict(objects) for part, objects in counts.items()}


def by_object(dump: str) -> dict[str, int]:
    """The instructions of each object in the text of one of callgrind's files.

    An `ob=` line names the object of the cost lines below it, `(number) path` the first time and `(number)` later.
    A cost line is a position and a number; the one below a `calls=` line is what the callee took, which has its own.
    """
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    here, of_callee = "", False
    for line in dump.splitlines():
        if match := _OBJECT.match(line):
            kind, number, name = match.groups()
            if name:
                names[number] = name
            if kind == "ob":
                here = names[number]
        elif line.startswith("calls="):
            of_callee = True
        elif match := _COST.match(line):
            if not of_callee:
                counts[here] += int(match[1])
            of_callee = False
    return dict(counts)


_OBJECT = re.compile(r"(ob|cob)=\((\d+)\)(?: (.*))?$")
_COST = re.compile(r"(?:[+-]?\d+|\*) (\d+)$")


@contextlib.contextmanager
def counted(part: str = "counted") -> Iterator[None]:
    """A part of a program that counts; for programs that `count` runs."""
    requests = _requests()
    gc.collect()
    gc.disable()
    requests.start()
    try:
        yield
    finally:
        requests.stop(part.encode())
        gc.enable()


@functools.cache
def _requests() -> ctypes.PyDLL:
    """Callgrind's switches, by the header that torch brings along."""
    import torch

    headers = Path(torch.__file__).parent / "utils" / "benchmark" / "utils" / "valgrind_wrapper"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "requests.cpp", Path(folder) / "requests.so"
        source.write_text(REQUESTS)
        command = ["g++", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        return ctypes.PyDLL(str(library))
