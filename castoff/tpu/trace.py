"""Traces programs on CPU-XLA to StableHLO: runs in the environment of the user's torch_xla.

As a script, ``python trace.py shapes|values PROGRAM.py FUNCTION CALLS GRAPHS.json``, it calls a function of a program,
syncs after each call, and writes the graphs of the last call. With ``shapes`` nothing is computed
(``castoff.tpu.placeholders``). With ``values`` torch_xla computes, and writes each graph to the file that
XLA_SAVE_TENSORS_FILE names. It needs no package but torch_xla.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GRAPH = re.compile(
    r"^TensorsGraphInfo:\n(.*?)\n\n.*?^## BEGIN_GRAPH\n(.*?)^(?:Graph Hash|## END_GRAPH)", re.MULTILINE | re.DOTALL
)
_FRAME = re.compile(r"^\s*(\S+) \((.*):(\d+)\)$", re.MULTILINE)
_CAST = re.compile(r"stablehlo\.convert .*: \(tensor<(?:[\dx?]*x)?(\w+)>\) -> tensor<(?:[\dx?]*x)?(\w+)>")

_MAIN = re.compile(
    r"^  func\.func @main\((?P<arguments>.*)\) -> .* \{\n(?P<body>(?:.*\n)*?)"
    r"^    return (?P<values>.*) : (?P<types>.*)\n  \}$",
    re.MULTILINE,
)

FOR_TPU = {"CASTOFF_TRACE_FOR": "TPU"}
"""The environment of a process whose graphs are for a TPU: where castoff's wheels ask for the device, it is one."""

BAD_PROGRAM = 3
"""The exit status of a script if the program or the environment is wrong; the last line has the reason."""

NEEDS_VALUES = 4
"""The exit status of a script if the program has to be run with values; the last line has the reason."""


@dataclass(frozen=True)
class Graph:
    """A graph that a program synced."""

    place: str  # the line of the program that synced it, such as "step (train.py:12)"
    stablehlo: str  # the graph, as StableHLO text

    @property
    def casts(self) -> list[tuple[str, str]]:
        """The casts in it: (from, to), by MLIR's names of dtypes."""
        return casts_of(self.stablehlo)


def casts_of(stablehlo: str) -> list[tuple[str, str]]:
    """Return the casts in StableHLO text: (from, to), by MLIR's names of dtypes."""
    return _CAST.findall(stablehlo)


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
    return [Graph(_place(_FRAME.findall(frames)), stablehlo) for frames, stablehlo in _GRAPH.findall(text)]


def _place(frames: Sequence[tuple[str, str, object]]) -> str:
    """Return the innermost frame that is neither in an installed package nor in this folder."""
    for name, path, line in frames:
        if "site-packages" not in path and Path(path).parent != Path(__file__).parent:
            return f"{name} ({Path(path).name}:{line})"
    return "the end of the function"


def main() -> int:
    """Run the script."""
    kind, program, function, calls, path = sys.argv[1:]
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    sys.path.insert(0, str(Path(program).parent))
    # Packages of the user's environment, for an environment that has torch and torch_xla only; and castoff itself.
    more = [folder for folder in os.environ.get("CASTOFF_MORE_PACKAGES", "").split(os.pathsep) if folder]
    sys.path += [*more, str(Path(__file__).parents[2])]
    try:
        import torch_xla  # noqa: F401
    except ImportError as error:
        return fault("torch_xla can be imported", str(error), "Give an environment that has it with --python.")
    from castoff.tpu import placeholders

    trace = _graphs_by_shapes if kind == "shapes" else _graphs_by_values
    try:
        graphs = trace(program, function, int(calls))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's program raises
        if kind == "shapes" and placeholders.needs_values(error):
            return needs_values(error)
        return fault(f"{function}() of {program} runs", problem_of(error), "Correct it; it runs on the CPU.")
    answer = {"graphs": [asdict(graph) for graph in graphs], "partitions": partitions(), **_versions()}
    Path(path).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def _graphs_by_values(program: str, function: str, calls: int) -> list[Graph]:
    """Return the graphs of the last call, which torch_xla computed and wrote to its file."""
    import torch_xla

    call = function_of(program, function)
    torch_xla.sync()
    start = 0
    for _ in range(calls):
        start = len(_written())
        kept = call()  # its result is alive at the sync, as in a loop
        torch_xla.sync()
        del kept
    return read_graphs(_written()[start:].decode())


def _graphs_by_shapes(program: str, function: str, calls: int) -> list[Graph]:
    """Return the graphs of the last call, without computing any.

    Raises:
        NeedsValuesError: See ``castoff.tpu.placeholders.nothing_computed``.
    """
    import torch_xla

    from castoff.tpu.placeholders import nothing_computed

    graphs: list[Graph] = []

    def seen() -> None:
        stablehlo = pending(torch_xla._XLAC._get_stablehlo([], str(torch_xla.device()), [], False).decode())
        if stablehlo is not None:
            graphs.append(Graph(_place(_frames()), stablehlo))

    with nothing_computed(seen):
        call = function_of(program, function)
        torch_xla.sync()
        for _ in range(calls):
            graphs.clear()
            kept = call()  # its result is alive at the sync, as in a loop
            torch_xla.sync()
            del kept
    return graphs


def pending(stablehlo: str) -> str | None:
    """Return the graph of all live tensors as a sync computes it: without the results that are data already.

    Args:
        stablehlo: The graph, as torch_xla writes it: StableHLO text, or "" if no tensor is alive.

    Returns:
        The graph, or None if all of its results are data already.
    """
    main = _MAIN.search(stablehlo)
    if main is None:
        return None
    results = zip(main["values"].split(", "), main["types"].split(", "), strict=True)
    computed = [(value, kind) for value, kind in results if not value.startswith("%arg")]
    if not computed:
        return None
    used = set(re.findall(r"%arg\d+", main["body"]))
    arguments = [argument for argument in main["arguments"].split(", ") if argument.partition(":")[0] in used]
    values, kinds = (", ".join(words) for words in zip(*computed, strict=True))
    shown = (
        f"  func.func @main({', '.join(arguments)}) -> {kinds if len(computed) == 1 else f'({kinds})'} {{\n"
        f"{main['body']}    return {values} : {kinds}\n  }}"
    )
    return stablehlo[: main.start()] + shown + stablehlo[main.end() :]


def _frames() -> list[tuple[str, str, int]]:
    """Return the frames of Python that lead to this, the innermost first: function, file, line."""
    return [(frame.name, frame.filename, frame.lineno or 0) for frame in reversed(traceback.extract_stack())]


def function_of(program: str, name: str) -> Callable[[], object]:
    """Run a program and return a function of it.

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
    frame = users_frame(told)
    summary = "".join(told.format_exception_only()).strip().splitlines()[-1]
    if frame is None:
        return summary
    return f"{Path(frame.filename).name}:{frame.lineno}: {summary}\n{''.join(told.format())}".rstrip()


def users_frame(told: traceback.TracebackException) -> traceback.FrameSummary | None:
    """Return the innermost frame of a user's program in an exception, if there is one; castoff's own are removed."""
    frames = _without_ours(told)
    users = [frame for frame in frames if "site-packages" not in frame.filename] or list(frames)
    return users[-1] if users else None


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


def _written() -> bytes:
    """Return the file with the graphs. torch_xla appends the process's rank to its name."""
    path = Path(os.environ["XLA_SAVE_TENSORS_FILE"] + ".0")
    return path.read_bytes() if path.exists() else b""


def _versions() -> dict[str, str]:
    import torch
    import torch_xla

    return {"torch": torch.__version__, "torch_xla": torch_xla.__version__}


def needs_values(error: BaseException) -> int:
    """Print why a program's graphs cannot be had without computing; return the exit status for it."""
    frame = users_frame(traceback.TracebackException.from_exception(error))
    at = "" if frame is None else f"{Path(frame.filename).name}:{frame.lineno}: "
    summary = str(error).splitlines()[0]
    print(f"\n{at}{'a value is read' if summary.startswith('Check failed') else summary}")
    return NEEDS_VALUES


def fault(expected: str, found: str, next_step: str) -> int:
    """Print the problem of the program or its environment as JSON; return the exit status for it."""
    print("\n" + json.dumps({"expected": expected, "found": found, "next_step": next_step}))
    return BAD_PROGRAM


if __name__ == "__main__":
    sys.exit(main())
