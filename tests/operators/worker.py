"""One process of the sweep: runs the samples that it is told to and prints what it found.

It reads lines ``{"op": …, "dtype": …, "of": …, "count": …, "together": …, "skip": [[number, phase]…]}``, of which "of"
is one of `plan.KINDS`. It answers with lines of JSON: ``start`` ahead of what may kill the process, ``done`` at the
end, results in between. A child of it does so, forked before the runtime starts: one that dies
(``died``) is followed by another (``ready``), without the imports.

All samples of an operator and dtype are one graph, because most of the time is that of the compiler. If that graph
does not run, each phase of each sample is one of its own, which says which of them are at fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import judge
import plan
import random_operators
import samples
import torch
import torch_xla
from torch.utils._pytree import tree_flatten
from torch_xla.debug import metrics

UNDEFINED = ("empty", "new_empty", "resize_")
"""Operators whose values are whatever was in memory."""

CPU = torch.device("cpu")

Row = dict[str, Any]


@dataclass
class Pending:
    """What a phase has traced: tensors to fetch, and what to make of them."""

    leaves: list[Any]
    judge: Callable[[list[Any]], judge.Verdict]
    late: str = "raises late"
    """What it is if the graph does not run."""


def emit(**message: Any) -> None:
    sys.__stdout__.write(json.dumps(message) + "\n")
    sys.__stdout__.flush()


def fetch(leaves: list[Any]) -> list[Any]:
    """The leaves with XLA tensors brought to the CPU, by one graph."""
    where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.device.type == "xla"]
    leaves = list(leaves)
    plain = [i for i in where if leaves[i].layout == torch.strided]
    if plain:
        fetched = torch_xla._XLAC._xla_get_cpu_tensors([leaves[i].detach() for i in plain])
        for i, t in zip(plain, fetched, strict=True):
            leaves[i] = t
    for i in set(where) - set(plain):
        leaves[i] = leaves[i].cpu()
    return leaves


def gradients(call: samples.Call, outputs: Any, inputs: list[torch.Tensor], device: torch.device) -> list[Any]:
    """Gradients of the floating-point inputs for fixed cotangents of what the sample says is differentiable."""
    leaves = [x for x in tree_flatten(call.process_output(outputs))[0] if isinstance(x, torch.Tensor)]
    leaves = [x for x in leaves if x.requires_grad and (x.is_floating_point() or x.is_complex())]
    if not leaves:
        return []
    generator = torch.Generator().manual_seed(samples.SEED)
    narrow = [torch.rand(x.shape, generator=generator).mul(1.5).add(0.25).bfloat16().half() for x in leaves]
    cotangents = [c.to(x.dtype).to(device) for c, x in zip(narrow, leaves, strict=True)]
    return list(torch.autograd.grad(leaves, inputs, cotangents, allow_unused=True))


def run(call: samples.Call, *, grad: bool, device: torch.device) -> list[Any]:
    """Outputs of a call; or gradients, none if there are none."""
    inputs = [t for t in call.tensors() if t.is_floating_point() and t.layout == torch.strided]
    if grad:
        for t in inputs:
            t.requires_grad_()
    with torch.set_grad_enabled(grad):
        outputs = call()
    if not grad:
        return tree_flatten(outputs)[0]
    return gradients(call, outputs, inputs, device) if inputs else []


class Sample:
    """One sample, run on the CPU, in float64 and on XLA."""

    def __init__(self, op: Any, call: samples.Call, dtype: torch.dtype, device: torch.device, other: bool) -> None:
        self.call, self.device, self.other = call, device, other
        self.differentiable = op.supports_autograd if other else samples.differentiable(op, dtype)
        random = op.full_name in random_operators.NAMES
        self.values = not random and not op.name.startswith(UNDEFINED) and "empty" not in op.name
        self.views_too = not other and dtype in (torch.float32, torch.int64) and bool(call.tensors())

    def begin(self, phase: str) -> Pending | None:
        """Trace a phase; None if there is nothing to compare. Raises what the operator raises on XLA alone."""
        if phase == "alias":
            return self._alias() if self.views_too else None
        if phase == "gradient" and not (self.differentiable and self.values):
            return None
        return self._compare(grad=phase == "gradient")

    def _on_cpu(self, change: Any, grad: bool) -> list[Any] | None:
        with contextlib.suppress(Exception):
            return run(self.call.map(change), grad=grad, device=CPU)
        return None

    def _compare(self, grad: bool) -> Pending | None:
        cpu = self._on_cpu(samples.fresh, grad)
        if cpu is None and self.other and not grad:
            return self._accepted()
        if cpu is None or (grad and not cpu):
            return None
        reference = self._on_cpu(samples.wide, grad)
        if reference is not None and len(reference) != len(cpu):
            reference = None
        found = run(self.call.map(samples.on(self.device)), grad=grad, device=self.device)
        tensors = [x for x in found if isinstance(x, torch.Tensor)]
        left = bool(tensors) and all(x.device.type == "cpu" for x in tensors)

        def verdict(values: list[Any]) -> judge.Verdict:
            found = judge.compare_all(values, cpu, reference, values=self.values)
            if found.kind == "same" and left and any(t.numel() for t in self.call.tensors()):
                return judge.differs("device", "the result is on the CPU")
            return found

        return Pending(found, verdict)

    def _accepted(self) -> Pending | None:
        """A call that the CPU refuses. What XLA accepts is as if all of its tensors were promoted to one dtype."""
        try:
            promoted = run(self.call.promoted.map(samples.fresh), grad=False, device=CPU)
            found = run(self.call.map(samples.on(self.device)), grad=False, device=self.device)
        except Exception:
            return None
        return Pending(found, lambda values: judge.promoted(values, promoted), late="refused late")

    def _alias(self) -> Pending | None:
        """Write to the results and look at the bases of the inputs, and the other way round."""
        cpu, found = [], []
        for write in ("result", "input"):
            try:
                on_cpu = self._written(CPU, write)
            except Exception:
                continue
            found += self._written(self.device, write)
            cpu += on_cpu
        if len(found) != len(cpu) or not cpu:
            return None

        def verdict(values: list[Any]) -> judge.Verdict:
            for i in range(0, len(cpu), 2):
                if any(x.shape != y.shape for x, y in zip(cpu[i : i + 2], values[i : i + 2], strict=True)):
                    continue
                there, wanted = changed(*values[i : i + 2]), changed(*cpu[i : i + 2])
                if not torch.equal(there, wanted):
                    detail = f"{int(there.sum())} of {there.numel()} elements change, on the CPU {int(wanted.sum())}"
                    return judge.differs("alias", detail)
            return judge.Verdict("same")

        return Pending(found, verdict)

    def _written(self, device: torch.device, write: str) -> list[Any]:
        """What is seen of a write: each tensor before it and after."""
        views = samples.Views(device)
        call = self.call.map(views)
        with torch.no_grad():
            results = [x for x in tree_flatten(call())[0] if isinstance(x, torch.Tensor)]
            written, seen = (results, views.bases) if write == "result" else (views.bases, results)
            before = [t.clone() for t in seen]
            for t in written:
                if t.dtype == torch.bool:
                    t.logical_not_()
                else:
                    t.add_(1)
            return [x for pair in zip(before, seen, strict=True) for x in pair]


def changed(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    if before.layout != torch.strided:
        before, after = before.to_dense(), after.to_dense()
    return (before != after) & ~(before.isnan() & after.isnan())


def raised(kind: str, error: Exception) -> Row:
    lines = [line for line in str(error).splitlines() if line.strip()]
    first = next((line for line in lines if "Check failed" not in line and "Error" not in line[:12]), "")
    text = (lines[0] if lines else "") if len(first) < 8 else first
    return {"kind": kind, "detail": f"{type(error).__name__}: {text[:200]}"}


class Pair:
    """The samples of one operator and dtype."""

    def __init__(self, op: Any, dtype: torch.dtype, job: dict[str, Any], device: torch.device) -> None:
        found = samples.of_kind(job["of"], op, dtype, job["count"])
        self.samples = {n: Sample(op, call, dtype, device, job["of"] == "other") for n, call in found}

    def together(self, skip: set[tuple[int, str]]) -> Iterator[Row]:
        """All phases of all samples, in one graph where it runs."""
        begun: list[tuple[int, str, Pending]] = []
        for number, phase in self._phases(skip):
            pending = self._begin(number, phase)
            if isinstance(pending, Pending):
                begun.append((number, phase, pending))
            elif pending is not None:
                skip |= {(number, other) for other in plan.PHASES}
                yield {"number": number, "phase": phase, **pending}
        try:
            values = iter(fetch([x for _, _, pending in begun for x in pending.leaves]))
        except Exception:
            left = {(number, phase) for number, phase, _ in begun}
            begun, pending = [], None  # let go of the graph
            yield from self.apart({one for one in self._phases(set()) if one not in left})
            return
        for number, phase, pending in begun:
            verdict = pending.judge([next(values) for _ in pending.leaves])
            yield {"number": number, "phase": phase, **verdict.row()}

    def apart(self, skip: set[tuple[int, str]]) -> Iterator[Row]:
        """Each phase of each sample in a graph of its own; what fails forward is not looked at further."""
        for number, phase in self._phases(skip):
            emit(start=[number, phase])
            row = pending = self._begin(number, phase)
            if isinstance(pending, Pending):
                try:
                    row = pending.judge(fetch(pending.leaves)).row()
                except Exception as error:
                    row = raised(pending.late, error)
            if row is not None:
                yield {"number": number, "phase": phase, **row}
                if row["kind"].startswith(("raises", "refused")):
                    skip |= {(number, other) for other in plan.PHASES}

    def _phases(self, skip: set[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        for number in self.samples:
            for phase in plan.PHASES:
                if (number, phase) not in skip:
                    yield number, phase

    def _begin(self, number: int, phase: str) -> Pending | Row | None:
        try:
            return self.samples[number].begin(phase)
        except Exception as error:
            return raised("raises", error)


def sweep(op: Any, dtype: torch.dtype, job: dict[str, Any], device: torch.device) -> None:
    skip = {(number, phase) for number, phase in job["skip"]}
    try:
        pair = Pair(op, dtype, job, device)
    except Exception as error:
        emit(number=-1, phase="samples", kind="no samples", detail=f"{type(error).__name__}: {error}"[:200])
        return
    emit(chosen=list(pair.samples))
    metrics.clear_counters()
    if job["together"]:
        emit(start=[-1, "together"])
    for row in pair.together(skip) if job["together"] else pair.apart(skip):
        emit(**row)
    if job["of"] == "torch" and op.full_name in random_operators.NAMES and (-1, "distribution") not in skip:
        emit(start=[-1, "distribution"])
        found = random_operators.judged(op.full_name, dtype, device)
        if found is not None:
            emit(number=-1, phase="distribution", **found)
    fallback = metrics.executed_fallback_ops()
    if fallback:
        emit(fallback=sorted(fallback))


def serve(operators: dict[str, Any]) -> None:
    device = torch_xla.device()
    emit(ready=os.getpid())
    for line in sys.stdin:
        job = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            sweep(operators[job["op"]], samples.DTYPES[job["dtype"]], job, device)
        emit(done=True)


def main() -> None:
    warnings.simplefilter("ignore")
    operators = samples.operators()
    while True:
        child = os.fork()
        if child == 0:
            serve(operators)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        emit(died=code)


if __name__ == "__main__":
    main()
