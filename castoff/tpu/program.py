"""``castoff tpu compile``: compiles a user's step function for a TPU, without a TPU."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from castoff.builder.environments import Environments, program_python
from castoff.core.context import Context
from castoff.core.errors import CastoffError, TpuError
from castoff.core.interpreter import Interpreter
from castoff.core.places import ROOT
from castoff.core.runner import Completed
from castoff.formats.xla_text import parse_hlo
from castoff.model.pin import Pin
from castoff.tpu import trace
from castoff.tpu.client import Compiled, TpuCompiler
from castoff.tpu.normalize import normalize

_TARGET = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)")
_OPTION = re.compile(r"(?P<name>xla_\w+)=(?P<value>.+)")
_FAULT_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
_LEFT = re.compile(r"RuntimeWarning: (\S+) leaves the device")  # topic on-device, before values are copied to the CPU
_PACKAGES = "import json, site, sys, sysconfig; print(json.dumps([sysconfig.get_path('purelib'), sys.path[1:]]))"

WHEELS = {"here": "these wheels", "stock": "stock wheels"}
"""The titles of the columns of the report."""


@dataclass(frozen=True)
class Request:
    """A request of the user."""

    program: Path  # the file
    function: str  # the function in it that is one step
    topology: str  # the TPU topology
    calls: int  # how often to call it; the last call is compiled
    options: dict[str, str]  # options of the TPU compiler


@dataclass(frozen=True)
class Step:
    """One call of the function with one torch_xla."""

    versions: dict[str, str]  # the versions of torch and torch_xla
    partitions: int  # the devices that its graphs are sharded over
    graphs: list[trace.Graph]  # the graphs that it synced, in order
    compiled: list[Compiled]  # the same, compiled

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data, for ``--json``."""
        return {
            **self.versions,
            "partitions": self.partitions,
            "graphs": [
                {
                    "place": graph.place,
                    "casts": counted(graph.casts),
                    "converts": counted(parse_hlo(compiled.hlo).converts()),
                    "memory": compiled.memory,
                    "estimated_cycles": compiled.estimated_cycles,
                    "moved_bytes": compiled.estimate.moved,
                    "without_estimate": dict(compiled.estimate.without),
                    "loops_of_unknown_length": compiled.estimate.loops,
                    "hlo": normalize(compiled.hlo),
                }
                for graph, compiled in zip(self.graphs, self.compiled, strict=True)
            ],
        }


def parse_request(target: str, topology: str, calls: int, options: Sequence[str]) -> Request:
    """Read the arguments of the command line.

    Args:
        target: "program.py:function".
        calls: How often to call the function.
        options: Options of the compiler, each "name=value".

    Raises:
        TpuError: One of them is malformed, or there is no such file.
    """
    program, function = parse_target(target, TpuError)
    read = [_OPTION.fullmatch(option) for option in options]
    for option, parts in zip(options, read, strict=True):
        if parts is None:
            raise TpuError(
                "an option of the compiler is malformed",
                expected="name=value, with a name of XLA's, like xla_tpu_scoped_vmem_limit_kib=32768",
                found=option,
                next_step="Correct --option.",
            )
    return Request(
        program=program,
        function=function,
        topology=topology,
        calls=calls,
        options={parts["name"]: parts["value"] for parts in read if parts is not None},
    )


def parse_target(target: str, error: type[CastoffError]) -> tuple[Path, str]:
    """Read "program.py:function".

    Args:
        error: The error to raise if it is malformed, or there is no such file.
    """
    match = _TARGET.fullmatch(target)
    if match is None or not Path(match["path"]).is_file():
        raise error(
            "there is no such program",
            expected="a file and a function in it, like train.py:step",
            found=target if match is None else f"no file {match['path']}",
            next_step="Give them as program.py:function.",
        )
    return Path(match["path"]).absolute(), match["function"]


def compile_program(
    request: Request,
    pin: Pin,
    python: str | None,
    *,
    compare_stock: bool,
    indexes: Sequence[str],
    context: Context,
) -> dict[str, Step]:
    """Trace a user's function and compile what it computes for a TPU.

    Args:
        pin: The pin whose TPU compiler it is.
        python: The Python of the user's environment; if None the active one, or else one with the wheels in dist/.
        compare_stock: Whether to do the same under stock wheels.
        indexes: Package indexes to fetch stock wheels from, besides pip's own.

    Returns:
        The step by the wheels that made it: "here", and "stock" if requested.

    Raises:
        CastoffError: What went wrong.
    """
    here = program_python(python, pin, context)
    with context.console.step("compiler", f"libtpu {pin.for_tpu(request.topology).libtpu}, ahead of time"):
        environments = Environments(context, indexes)
        compiler_python = environments.tpu_compiler(pin, topology=request.topology)
        stock = environments.stock(pin, here) if compare_stock else None
    with TpuCompiler(compiler_python, context.cache.tpu) as compiler:
        devices = compiler.devices(request.topology)
        steps = {"here": _step(request, here, {}, devices, compiler=compiler, context=context)}
        if stock is not None:
            more = {"CASTOFF_MORE_PACKAGES": os.pathsep.join(packages_of(here, context))}
            there = Interpreter(here.version, stock)
            steps["stock"] = _step(request, there, more, devices, compiler=compiler, context=context)
    return steps


def packages_of(interpreter: Interpreter, context: Context) -> list[str]:
    """Return the folders of an environment's packages."""
    assert interpreter.path is not None
    answer = context.runner.run([interpreter.path, "-I", "-c", _PACKAGES], name="packages").output
    purelib, others = json.loads(answer)
    return [purelib, *(path for path in others if "site-packages" in path or "dist-packages" in path)]


def _step(
    request: Request,
    interpreter: Interpreter,
    more: Mapping[str, str],
    devices: int,
    *,
    compiler: TpuCompiler,
    context: Context,
) -> Step:
    """Trace with one environment, and compile."""
    console = context.console
    with console.step("trace", f"{request.function}() of {request.program.name} with {interpreter.path}"):
        answer, graphs = _trace(request, interpreter, more, devices, context)
        console.note(f"{len(graphs)} graph(s), torch {answer['torch']}, torch_xla {answer['torch_xla']}")
    partitions = int(str(answer["partitions"]))
    compiled = []
    with console.step("compile", f"for {request.topology}, {partitions} of its {devices} devices"):
        for graph in graphs:
            made = compiler.compile(graph.stablehlo.encode(), request.topology, partitions, request.options)
            compiled.append(made)
            console.note(f"{graph.place}: {made.estimated_cycles:,} cycles{' (cached)' if made.cached else ''}")
            if gaps := made.estimate.gaps():
                console.note(f"{graph.place}: the compiler has no estimate for {gaps}")
    versions = {project: str(answer[project]) for project in ("torch", "torch_xla")}
    return Step(versions, partitions, graphs, compiled)


def _trace(
    request: Request, interpreter: Interpreter, more: Mapping[str, str], devices: int, context: Context
) -> tuple[dict[str, object], list[trace.Graph]]:
    """Run the script in the user's environment; return its answer and the graphs."""
    python = interpreter.path
    assert python is not None
    with tempfile.TemporaryDirectory(prefix="castoff-trace-") as folder:
        path = Path(folder) / "graphs.json"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PJRT_")}
        environment.update(more, **trace.FOR_TPU)
        environment.update(
            PJRT_DEVICE="CPU",
            CASTOFF_WARN_LEAVES_DEVICE="1",
            CPU_NUM_DEVICES=str(devices),
            XLA_SAVE_TENSORS_FILE=str(path.with_name("graphs")),
            XLA_SAVE_TENSORS_FMT="stablehlo",
        )

        def run(data: str) -> Completed:
            arguments = (data, request.program, request.function, str(request.calls), path)
            return context.runner.run([python, trace.__file__, *arguments], name="trace", env=environment, check=False)

        completed = with_values_if_needed(run, context)
        if completed.returncode != 0:
            raise fault_of(completed, TpuError, f"{request.program.name} cannot be traced")
        answer = json.loads(path.read_text(encoding="utf-8"))
    found = [trace.Graph(**graph) for graph in answer.pop("graphs")]
    if not found:
        raise TpuError(
            f"{request.function}() computes nothing on XLA",
            expected="a function that computes with tensors on torch_xla.device()",
            found="no graph at the sync after it",
            next_step="Move its model and inputs to torch_xla.device().",
        )
    return answer, found


def with_values_if_needed(run: Callable[[str], Completed], context: Context) -> Completed:
    """Run a script without computing, and again with values if the program needs them.

    Args:
        run: Runs the script with the argument "shapes" or "values".
        context: Its console says why it is run again.
    """
    completed = run("shapes")
    reason = reason_for_values(completed)
    if reason is None:
        return completed
    context.console.note(f"{reason}: the step is computed on the CPU, which takes longer")
    return run("values")


def reason_for_values(completed: Completed) -> str | None:
    """Return why a program's graphs could not be had without computing, in a few words; None if that was no reason.

    Args:
        completed: The run of it that ended. Where a value is read torch_xla aborts, and Python names the lines.
    """
    if completed.returncode == trace.NEEDS_VALUES:
        return completed.output.rstrip().splitlines()[-1]
    if completed.returncode not in (-signal.SIGABRT, -signal.SIGSEGV):
        return None
    left = _LEFT.findall(completed.output)
    what = f"{left[-1]} leaves the device and reads a value" if left else "a value is read"
    frames = [
        f"{Path(path).name}:{line}: {what}"
        for path, line in _FAULT_FRAME.findall(completed.output)
        if "site-packages" not in path and not Path(path).is_relative_to(ROOT / "castoff")
    ]
    return frames[0] if frames else what


def fault_of(completed: Completed, error: type[CastoffError], summary: str) -> CastoffError:
    """Return the error of a script that ran a user's program.

    Args:
        completed: The script, which failed; see ``castoff.tpu.trace.fault``.
    """
    if completed.returncode == trace.BAD_PROGRAM:
        for line in reversed(completed.output.splitlines()):  # libraries may write at the end of a process
            with suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.keys() == {"expected", "found", "next_step"}:
                    return error(summary, **answer)
    return error(
        summary,
        expected="the program runs to its end",
        found=f"exit status {completed.returncode}; it ended with\n{completed.tail}",
        next_step=f"Read the whole log: {completed.log}",
    )


def counted(pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the number of each conversion, such as ``{"f32 to bf16": 3}``."""
    return dict(sorted(Counter(f"{source} to {target}" for source, target in pairs).items()))


def report(steps: Mapping[str, Step]) -> str:
    """Return the steps as a table for a person: a row for each quantity, a column for each set of wheels."""
    table = [["", *(f"{WHEELS[name]} ({step.versions['torch_xla']})" for name, step in steps.items())]]
    table.append(["graphs", *(str(len(step.graphs)) for step in steps.values())])
    casts = [[cast for graph in step.graphs for cast in graph.casts] for step in steps.values()]
    table += _conversions("casts in the program", casts)
    converts = [
        [convert for compiled in step.compiled for convert in parse_hlo(compiled.hlo).converts()]
        for step in steps.values()
    ]
    table += _conversions("converts in the TPU's HLO", converts)
    for kind in ("argument", "output", "temp", "generated_code"):
        sums = (sum(compiled.memory[kind] for compiled in step.compiled) for step in steps.values())
        table.append([f"{kind.replace('_', ' ')} bytes", *(f"{value:,}" for value in sums)])
    cycles = (sum(compiled.estimated_cycles for compiled in step.compiled) for step in steps.values())
    table.append(["estimated cycles", *(f"{value:,}" for value in cycles)])
    gaps = [sum((compiled.estimate.without for compiled in step.compiled), Counter()) for step in steps.values()]
    table.append(["without an estimate", *(str(sum(count.values())) for count in gaps)])
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    lines = []
    for first, *others in table:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def _conversions(title: str, columns: Sequence[Sequence[tuple[str, str]]]) -> list[list[str]]:
    """Return the rows that count conversions: the total, and below it each pair of dtypes."""
    counts = [counted(column) for column in columns]
    pairs = sorted({pair for count in counts for pair in count})
    rows = [[title, *(str(len(column)) for column in columns)]]
    return rows + [[f"  {pair}", *(str(count.get(pair, 0)) for count in counts)] for pair in pairs]
