"""One process of the sweep: runs the samples that it is told to and prints what it found.

It reads lines ``{"op": …, "dtype": …, "count": …, "skip": [[number, phase]…]}`` and answers with lines of JSON:
``start`` ahead of what may kill the process, ``done`` at the end, results in between.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import judge
import random_operators
import samples
import torch
import torch_xla
from torch.utils._pytree import tree_flatten

UNDEFINED = ("empty", "new_empty", "resize_")
"""Operators whose values are whatever was in memory."""


def emit(**message: Any) -> None:
    sys.__stdout__.write(json.dumps(message) + "\n")
    sys.__stdout__.flush()


def fetch(leaves: list[Any]) -> list[Any]:
    """The leaves with XLA tensors brought to the CPU, by one graph."""
    where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.device.type == "xla"]
    leaves = list(leaves)
    plain = [i for i in where if leaves[i].layout == torch.strided]
    for i, t in zip(plain, torch_xla._XLAC._xla_get_cpu_tensors([leaves[i].detach() for i in plain]), strict=True):
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


def run(call: samples.Call, *, grad: bool, device: torch.device) -> tuple[list[Any], list[Any] | None]:
    """Outputs of a call, and gradients if asked for and there are any."""
    inputs = [t for t in call.tensors() if t.is_floating_point() and t.layout == torch.strided]
    if grad:
        for t in inputs:
            t.requires_grad_()
    with torch.set_grad_enabled(grad):
        outputs = call()
    leaves = tree_flatten(outputs)[0]
    if not grad or not inputs:
        return leaves, None
    return leaves, gradients(call, outputs, inputs, device)


CPU = torch.device("cpu")


class Sample:
    """One sample, run on the CPU, in float64 and on XLA."""

    def __init__(self, op: Any, number: int, call: samples.Call, dtype: torch.dtype, device: torch.device) -> None:
        self.op, self.number, self.call, self.device = op, number, call, device
        self.differentiable = samples.differentiable(op, dtype)
        self.random = op.full_name in random_operators.NAMES
        self.values = not self.random and not op.name.startswith(UNDEFINED) and "empty" not in op.name

    def forward(self) -> dict[str, Any] | None:
        return self._compare(grad=False)

    def gradient(self) -> dict[str, Any] | None:
        return self._compare(grad=True) if self.differentiable and self.values else None

    def _on_cpu(self, change: Any, grad: bool) -> tuple[list[Any], list[Any] | None] | None:
        try:
            return run(self.call.map(change), grad=grad, device=CPU)
        except Exception:
            return None

    def _compare(self, grad: bool) -> dict[str, Any] | None:
        cpu = self._on_cpu(samples.fresh, grad)
        if cpu is None or (grad and not cpu[1]):
            return None
        reference = self._on_cpu(samples.wide, grad)
        try:
            found = run(self.call.map(samples.on(self.device)), grad=grad, device=self.device)
        except Exception as error:
            return raised("call", error)
        which = 1 if grad else 0
        devices = {x.device.type for x in found[which] if isinstance(x, torch.Tensor)}
        try:
            values = fetch(found[which])
        except Exception as error:
            return raised("sync", error)
        wanted = reference[which] if reference and len(reference[which] or []) == len(cpu[which]) else None
        found_difference = self._difference(values, cpu[which], wanted)
        if found_difference is None and "cpu" in devices and any(t.numel() for t in self.call.tensors()):
            on_cpu = all(isinstance(x, torch.Tensor) and x.device.type == "cpu" for x in found[which])
            found_difference = "device: the result is on the CPU" if on_cpu and self.call.tensors() else None
        return {"outcome": "silent", "detail": found_difference} if found_difference else {"outcome": "same"}

    def _difference(self, found: list[Any], cpu: list[Any], wanted: list[Any] | None) -> str | None:
        if len(found) != len(cpu):
            return f"type: {len(found)} results, on the CPU {len(cpu)}"
        for i, (x, y) in enumerate(zip(found, cpu, strict=True)):
            if (x is None) != (y is None):
                return f"type: gradient {i} is {'None' if x is None else 'there'}, unlike the CPU's"
            reason = None if y is None else judge.difference(x, y, wanted and wanted[i], values=self.values)
            if reason is not None:
                return reason
        return None

    def alias(self) -> dict[str, Any] | None:
        """Write to the results and look at the bases of the inputs, then the other way round."""
        if not self.call.tensors():
            return None
        for write in ("result", "input"):
            try:
                cpu = self._written(CPU, write)
            except Exception:
                continue
            try:
                found = self._written(self.device, write)
            except Exception as error:
                return raised("call", error)
            try:
                found = fetch(found)
            except Exception as error:
                return raised("sync", error)
            for x, y in zip(found, cpu, strict=True):
                reason = judge.difference(x, y, None, values=self.values)
                if reason is not None:
                    return {"outcome": "silent", "detail": f"alias: {write} written; then {reason}"}
        return {"outcome": "same"}

    def _written(self, device: torch.device, write: str) -> list[Any]:
        views = samples.Views(device)
        call = self.call.map(views)
        with torch.no_grad():
            results = [x for x in tree_flatten(call())[0] if isinstance(x, torch.Tensor)]
            written, seen = (results, views.bases) if write == "result" else (views.bases, results)
            for t in written:
                if t.dtype == torch.bool:
                    t.logical_not_()
                else:
                    t.add_(1)
        return list(seen)


def raised(where: str, error: Exception) -> dict[str, Any]:
    lines = [line for line in str(error).splitlines() if line.strip()]
    first = next((line for line in lines if "Check failed" not in line and "Error" not in line[:12]), "")
    text = (lines[0] if lines else "") if len(first) < 8 else first
    return {"outcome": "raises", "at": where, "detail": f"{type(error).__name__}: {text[:200]}"}


def sweep(op: Any, dtype: torch.dtype, count: int, skip: set[tuple[int, str]], device: torch.device) -> Iterator[None]:
    try:
        chosen = samples.samples(op, dtype, count)
    except Exception as error:
        emit(no_samples=f"{type(error).__name__}: {error}")
        return
    views_too = dtype in (torch.float32, torch.int64)
    for number, call in chosen:
        sample = Sample(op, number, call, dtype, device)
        for phase in ("forward", "gradient", *(["alias"] if views_too else [])):
            if (number, phase) in skip:
                continue
            emit(start=[number, phase])
            result = getattr(sample, phase)()
            if result is not None:
                emit(number=number, phase=phase, **result)
    if op.full_name in random_operators.NAMES:
        emit(start=[-1, "distribution"])
        if (-1, "distribution") not in skip:
            result = random_operators.judge(op.full_name, dtype, device)
            if result is not None:
                emit(number=-1, phase="distribution", **result)


def main() -> None:
    warnings.simplefilter("ignore")
    device = torch_xla.device()
    operators = samples.operators()
    emit(ready=True)
    for line in sys.stdin:
        job = json.loads(line)
        skip = {(number, phase) for number, phase in job["skip"]}
        with contextlib.redirect_stdout(sys.stderr):
            sweep(operators[job["op"]], samples.DTYPES[job["dtype"]], job["count"], skip, device)
        emit(done=True)


if __name__ == "__main__":
    main()
