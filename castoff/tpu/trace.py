"""Traces programs on CPU-XLA to StableHLO: runs in the environment of the user's torch_xla.

As a script, ``python trace.py PROGRAM.py FUNCTION CALLS``, it calls a function of a program and syncs
after each call; torch_xla writes each graph to the file that XLA_SAVE_TENSORS_FILE names, and the last
line of standard output is JSON with the part of it that is the last call's. It imports nothing
of castoff, and no package but torch_xla.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GRAPH = re.compile(
    r"^TensorsGraphInfo:\n(.*?)\n\n.*?^## BEGIN_GRAPH\n(.*?)^(?:Graph Hash|## END_GRAPH)", re.MULTILINE | re.DOTALL
)
_FRAME = re.compile(r"^\s*(\S+) \((.*):(\d+)\)$", re.MULTILINE)
_CAST = re.compile(r"stablehlo\.convert .*: \(tensor<(?:[\dx?]*x)?(\w+)>\) -> tensor<(?:[\dx?]*x)?(\w+)>")

BAD_PROGRAM = 3
"""The exit status of a script if the program or the environment is wrong; the last line has the reason."""


@dataclass(frozen=True)
class Graph:
    """A graph that a program synced."""

    place: str  # the line of the program that synced it, such as "step (train.py:12)"
    stablehlo: str  # the graph, as StableHLO text

    @property
    def casts(self) -> list[tuple[str, str]]:
        """The casts in it: (from, to), by MLIR's names of dtypes."""
        return _CAST.findall(self.stablehlo)


def program_of(tensors: Sequence[torch.Tensor]) -> tuple[bytes, int]:
    """Return the pending graph of tensors as portable StableHLO, and the devices its shardings are for.

    Args:
        tensors: XLA tensors whose values are pending.
    """
    import torch_xla

    stablehlo: bytes = torch_xla._XLAC._get_stablehlo(list(tensors), "", [], True)
    return stablehlo, partitions()


def partitions() -> int:
    """Return the number of devices that this process shards its graphs over: 1 without SPMD."""
    import torch_xla.runtime

    return int(torch_xla.runtime.global_runtime_device_count()) if torch_xla.runtime.is_spmd() else 1


def read_graphs(text: str) -> list[Graph]:
    """Return the graphs in a file that torch_xla wrote.

    Args:
        text: The file, or a part of it that begins between two graphs.
    """
    return [Graph(_place(frames), stablehlo) for frames, stablehlo in _GRAPH.findall(text)]


def _place(frames: str) -> str:
    """Return the innermost frame that is neither in an installed package nor in this file."""
    for name, path, line in _FRAME.findall(frames):
        if "site-packages" not in path and Path(path) != Path(__file__):
            return f"{name} ({Path(path).name}:{line})"
    return "the end of the function"


def main() -> int:
    """Run the script."""
    program, function, calls = sys.argv[1:]
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    sys.path.insert(0, str(Path(program).parent))
    # Packages of the user's environment, for an environment that has torch and torch_xla only.
    sys.path += os.environ.get("CASTOFF_MORE_PACKAGES", "").split(os.pathsep)
    try:
        import torch_xla
    except ImportError as error:
        return fault("torch_xla can be imported", str(error), "Give an environment that has it with --python.")
    try:
        call = function_of(program, function)
        torch_xla.sync()
        start = end = _size()
        for _ in range(int(calls)):
            start = _size()
            kept = call()  # its result is alive at the sync, as in a loop
            torch_xla.sync()
            del kept
            end = _size()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's program raises
        return fault(f"{function}() of {program} runs", problem_of(error), "Correct it; it runs on the CPU.")
    print("\n" + json.dumps({"start": start, "end": end, "partitions": partitions(), **_versions()}))
    return 0


def function_of(program: str, name: str) -> Callable[[], object]:
    """Run a program and return a function of it.

    Args:
        program: Its file.
        name: The function's name.

    Raises:
        ImportError: It is no Python file.
        AttributeError: It has no such function.
        Exception: Any exception of the program.
    """
    spec = importlib.util.spec_from_file_location(Path(program).stem, program)
    if spec is None or spec.loader is None:
        raise ImportError(f"{program} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        known = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise AttributeError(f"it has no function {name!r}; it has: {known or 'none'}")
    found: Callable[[], object] = function
    return found


def problem_of(error: BaseException) -> str:
    """Return the traceback of a program's exception, without castoff's frames, below the line that raised it.

    Args:
        error: The exception, as it was caught.
    """
    told = traceback.TracebackException.from_exception(error)
    frames = _without_ours(told)
    users = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    summary = "".join(told.format_exception_only()).strip().splitlines()[-1]
    if not users:
        return summary
    return f"{Path(users[-1].filename).name}:{users[-1].lineno}: {summary}\n{''.join(told.format())}".rstrip()


def _without_ours(told: traceback.TracebackException) -> traceback.StackSummary:
    """Remove the frames of castoff and of the import system from an exception and from those that led to it."""
    ours = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen importlib")
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if not frame.filename.startswith(ours)]
    )
    for before in (told.__cause__, told.__context__):
        if before is not None:
            _without_ours(before)
    return told.stack


def _size() -> int:
    """Return the size of the file with the graphs. torch_xla appends the process's rank to its name."""
    path = Path(os.environ["XLA_SAVE_TENSORS_FILE"] + ".0")
    return path.stat().st_size if path.exists() else 0


def _versions() -> dict[str, str]:
    import torch
    import torch_xla

    return {"torch": torch.__version__, "torch_xla": torch_xla.__version__}


def fault(expected: str, found: str, next_step: str) -> int:
    """Print the problem of the program or its environment as JSON; return the exit status for it."""
    print("\n" + json.dumps({"expected": expected, "found": found, "next_step": next_step}))
    return BAD_PROGRAM


if __name__ == "__main__":
    sys.exit(main())
