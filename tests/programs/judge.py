"""Whether a program does on XLA what it does on the CPU.

Results are compared leaf by leaf: type, dtype, shape and values. Integers and booleans must be equal. Floating-point
values may be apart by a relative tolerance that depends on the dtype, of their own size or of the tensor's. NaN equals
NaN, and an infinity itself. A program that raises on the CPU must raise on XLA, too, of the same type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch_xla
from record import RIGHT
from torch.utils._pytree import tree_flatten

TOLERANCE = {torch.float64: 1e-4, torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""float64 as float32: some of XLA's float64 functions are computed in float32."""


@dataclass(frozen=True)
class Outcome:
    """What a program did on XLA, beside the CPU.

    kind: "right", "raises X" (the CPU does not), "wrong value", "wrong dtype", "wrong shape", "wrong type",
    "accepts" (the CPU raises), "hangs", "dies".
    detail: what was found.
    """

    kind: str
    detail: str = ""


@dataclass(frozen=True)
class Run:
    """What a program returned, or raised."""

    leaves: list[Any]
    error: BaseException | None = None


def run(program: Any, device: torch.device) -> Run:
    """Run a program on a device. Results are fetched here, as an error of a graph is one of the program."""
    torch.manual_seed(0)
    try:
        leaves = tree_flatten(program(device))[0]
        if any(isinstance(x, torch.Tensor) and x.device.type == "xla" for x in leaves):
            torch_xla.sync()  # one graph for all results
        leaves = [x.detach().cpu() if isinstance(x, torch.Tensor) else x for x in leaves]
    except BaseException as error:  # torch.distributed.checkpoint's is no Exception
        return Run([], error)
    return Run(leaves)


def judged(found: Run, cpu: Run, tolerance: float | None = None) -> Outcome:
    """The outcome of a run on XLA beside one on the CPU."""
    if found.error is not None:
        if cpu.error is not None:
            same = isinstance(found.error, type(cpu.error)) or isinstance(cpu.error, type(found.error))
            return Outcome(RIGHT) if same else raises(found.error)
        return raises(found.error)
    if cpu.error is not None:
        return Outcome("accepts", f"the CPU raises {type(cpu.error).__name__}: {first_line(cpu.error)}")
    if len(found.leaves) != len(cpu.leaves):
        return Outcome("wrong type", f"{len(found.leaves)} results, on the CPU {len(cpu.leaves)}")
    for number, (here, there) in enumerate(zip(found.leaves, cpu.leaves, strict=True)):
        outcome = compared(here, there, tolerance)
        if outcome.kind != RIGHT:
            return Outcome(outcome.kind, f"result {number}: {outcome.detail}")
    return Outcome(RIGHT)


def raises(error: BaseException) -> Outcome:
    return Outcome(f"raises {type(error).__name__}", first_line(error))


def first_line(error: BaseException) -> str:
    """What an error says, without paths and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:160] if lines else ""


def compared(found: Any, cpu: Any, tolerance: float | None) -> Outcome:
    """One leaf."""
    if isinstance(found, float) and isinstance(cpu, float):
        near = math.isfinite(cpu) and abs(found - cpu) <= (tolerance or TOLERANCE[torch.float32]) * max(1.0, abs(cpu))
        same = near or found == cpu or (math.isnan(found) and math.isnan(cpu))
        return Outcome(RIGHT) if same else Outcome("wrong value", f"{found}, on the CPU {cpu}")
    if not isinstance(cpu, torch.Tensor) or not isinstance(found, torch.Tensor):
        if type(found) is not type(cpu):
            return Outcome("wrong type", f"{type(found).__name__}, on the CPU {type(cpu).__name__}")
        return Outcome(RIGHT) if found == cpu else Outcome("wrong value", f"{found!r:.60}, on the CPU {cpu!r:.60}")
    if found.dtype != cpu.dtype:
        return Outcome("wrong dtype", f"{found.dtype}, on the CPU {cpu.dtype}")
    if found.shape != cpu.shape:
        return Outcome("wrong shape", f"{list(found.shape)}, on the CPU {list(cpu.shape)}")
    return values_compared(found, cpu, tolerance)


def values_compared(found: torch.Tensor, cpu: torch.Tensor, tolerance: float | None) -> Outcome:
    if not cpu.numel():
        return Outcome(RIGHT)
    if cpu.is_complex():
        found, cpu = torch.view_as_real(found.resolve_conj()), torch.view_as_real(cpu.resolve_conj())
    if not cpu.is_floating_point():
        unequal = int((found != cpu).sum())
        return Outcome("wrong value", f"{unequal} of {cpu.numel()} are not equal") if unequal else Outcome(RIGHT)
    relative = tolerance or TOLERANCE.get(cpu.dtype, 0.0)
    here, there = found.double(), cpu.double()
    finite = there[there.isfinite()].abs()
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    apart = (here - there).abs()
    near = (apart <= relative * there.abs().clamp(min=scale)) & there.isfinite()
    same = (here == there) | (here.isnan() & there.isnan()) | near
    if bool(same.all()):
        return Outcome(RIGHT)
    worst = apart[~same].nan_to_num(math.inf, math.inf).max()
    return Outcome("wrong value", f"{int((~same).sum())} of {cpu.numel()} are off, by up to {float(worst):.3g}")
