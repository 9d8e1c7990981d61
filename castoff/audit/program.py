"""``castoff audit``: runs a function of a user's program in their environment and reads the report."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from castoff.audit import worker
from castoff.audit.lock import FIRST_LINE
from castoff.audit.report import FORBIDDABLE, Report
from castoff.audit.trials import Trial, tried
from castoff.builder.environments import Environments, program_python
from castoff.core.context import Context
from castoff.core.errors import AuditError
from castoff.core.interpreter import Interpreter
from castoff.core.runner import Completed
from castoff.formats.xla_text import parse_hlo
from castoff.model.pin import Pin
from castoff.tpu.client import Compiled, TpuCompiler
from castoff.tpu.program import fault_of, packages_of, parse_target, with_values_if_needed
from castoff.tpu.trace import FOR_TPU


@dataclass(frozen=True)
class Request:
    """A request of the user."""

    program: Path  # the file
    function: str  # the function in it that is one step
    calls: int = 2  # how often to call it; the last call counts
    python: str | None = None  # the Python of the user's environment; if None the active one, or one of dist/
    topology: str | None = None  # the TPUs whose compiler is asked what it keeps; None for none


def parse_request(target: str, calls: int, python: str | None, topology: str | None) -> Request:
    """Read the arguments of the command line.

    Raises:
        AuditError: There is no such program.
    """
    program, function = parse_target(target, AuditError)
    return Request(program, function, calls, python, topology)


def check_kinds(kinds: Sequence[str]) -> None:
    """Check the arguments of --forbid.

    Raises:
        AuditError: There is no such kind of cast.
    """
    for kind in kinds:
        if kind not in FORBIDDABLE:
            raise AuditError(
                "there is no such kind of cast",
                expected=" or ".join(FORBIDDABLE),
                found=kind,
                next_step="Correct --forbid.",
            )


def check_lock_file(path: Path | None) -> None:
    """Check the argument of --check-lock.

    Raises:
        AuditError: It is no lock file.
    """
    if path is None:
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = f"the first line {lines[0]!r}" if lines else "an empty file"
    except (OSError, UnicodeDecodeError) as error:
        found, lines = str(error), []
    if lines[:1] != [FIRST_LINE]:
        raise AuditError(
            f"{path} is no lock file",
            expected=f"a file whose first line is {FIRST_LINE!r}",
            found=found,
            next_step=f"Make one with --write-lock {path}.",
        )


def check_files(*paths: Path | None) -> None:
    """Check the arguments of --html, --report and --write-lock: whether these files can be written.

    Raises:
        AuditError: One of them cannot.
    """
    for path in paths:
        if path is None:
            continue
        existed = path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise AuditError(
                f"{path} cannot be written",
                expected="a file in a folder that exists and is writable",
                found=str(error.strerror),
                next_step="Correct --html, --report or --write-lock.",
            ) from None
        if not existed:
            path.unlink()


def audit_program(
    request: Request,
    pin: Pin,
    *,
    compare_stock: bool,
    stock_python: Path | None,
    indexes: Sequence[str],
    context: Context,
) -> dict[str, Report]:
    """Audit a user's function.

    Args:
        pin: The pin of the stock wheels and the TPU compiler.
        compare_stock: Whether to do the same with stock wheels.
        stock_python: The Python of an environment with stock wheels; one is made if None.
        indexes: Package indexes to fetch stock wheels from, besides pip's own.

    Returns:
        The report by its wheels: "here", and "stock" if requested.

    Raises:
        CastoffError: What went wrong.
    """
    here = program_python(request.python, pin, context)
    environments: dict[str, tuple[Interpreter, dict[str, str]]] = {"here": (here, {})}
    if compare_stock or stock_python is not None:
        python = stock_python or Environments(context, indexes).stock(pin, here)
        more = {"CASTOFF_MORE_PACKAGES": os.pathsep.join(packages_of(here, context))}
        environments["stock"] = (Interpreter(here.version, python.absolute()), more)
    if request.topology is None:
        return {name: _audit(request, *where, context) for name, where in environments.items()}
    compiler_python = Environments(context, indexes).tpu_compiler(pin, topology=request.topology)
    with TpuCompiler(compiler_python, context.cache.tpu) as compiler:
        devices = compiler.devices(request.topology)
        reports = {}
        for name, (interpreter, more) in environments.items():
            report = _audit(request, interpreter, {"CPU_NUM_DEVICES": str(devices), **FOR_TPU, **more}, context)
            reports[name] = _on_tpu(report, request, compiler, context)
    return reports


def try_settings(request: Request, report: Report, pin: Pin, context: Context) -> list[Trial]:
    """Audit a user's function again with each setting that its report advises.

    Args:
        report: The report without these settings.
        pin: The pin of the environment that is made if there is none.

    Returns:
        What each setting removes. A setting with which the step fails says so in its trial.
    """
    here = program_python(request.python, pin, context)
    alone = replace(request, topology=None)
    device = {} if request.topology is None else FOR_TPU
    return tried(report, lambda more: _audit(alone, here, {**device, **more}, context))


def meta_program(request: Request, pin: Pin, context: Context) -> dict[str, Any]:
    """Run a user's function on the meta device and return what was found.

    Raises:
        CastoffError: What went wrong.
    """
    return _run("meta", request, program_python(request.python, pin, context), {}, context)


def _audit(request: Request, interpreter: Interpreter, more: Mapping[str, str], context: Context) -> Report:
    kind = "xla" if request.topology is None else "stablehlo"
    report = Report.from_dict(_run(kind, request, interpreter, more, context))
    if not report.graphs:
        raise AuditError(
            f"{request.function}() computes nothing on XLA",
            expected="a function that computes with tensors on torch_xla.device()",
            found="no graph",
            next_step="Move its model and inputs to torch_xla.device(), or use --meta.",
        )
    return report


def _run(
    kind: str, request: Request, interpreter: Interpreter, more: Mapping[str, str], context: Context
) -> dict[str, Any]:
    """Run the worker and return its report as plain data."""
    python = interpreter.path
    assert python is not None
    about = f"{request.function}() of {request.program.name} with {python}"
    with tempfile.TemporaryDirectory(prefix="castoff-audit-") as folder, context.console.step("audit", about):
        path = Path(folder) / "report.json"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PJRT_")}
        environment.update(PJRT_DEVICE="CPU", **more)

        def run(data: str) -> Completed:
            arguments = (kind, data, request.program, request.function, str(request.calls), path)
            return context.runner.run([python, worker.__file__, *arguments], name="audit", env=environment, check=False)

        completed = with_values_if_needed(run, context)
        if completed.returncode == 0:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        raise fault_of(completed, AuditError, f"{request.program.name} cannot be audited")


def _on_tpu(report: Report, request: Request, compiler: TpuCompiler, context: Context) -> Report:
    """Count how many converts of each cast the TPU compiler keeps."""
    assert request.topology is not None
    kept = []
    with context.console.step("compile", f"for {request.topology}"):
        for graph in report.graphs:
            made = compiler.compile(graph.stablehlo, request.topology, graph.partitions)
            kept.append(converts_by_origin(made))
    casts = tuple(
        replace(cast, tpu=kept[cast.graph][cast.origin, cast.source, cast.target] if cast.origin else 0)
        for cast in report.casts
    )
    graphs = tuple(replace(graph, stablehlo=b"") for graph in report.graphs)
    return replace(report, casts=casts, graphs=graphs)


def converts_by_origin(compiled: Compiled) -> Counter[tuple[str, str, str]]:
    """Count the converts of optimised HLO by origin, source dtype and target dtype."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for computation in parse_hlo(compiled.hlo).computations.values():
        dtypes = {inner.name: inner.dtype for inner in computation}
        counts.update(
            (inner.op_name, dtypes[inner.operands[0]], inner.dtype) for inner in computation if inner.op == "convert"
        )
    return counts
