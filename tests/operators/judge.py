"""Whether what XLA computed is what torch's CPU kernels compute.

dtype and shape are the same. Integers and booleans are equal. Of floating-point numbers the error against
float64, in units in the last place of the dtype, is at most 1.5 times that of the CPU's result, or a few units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

FACTOR = 1.5
UNITS = {torch.float64: 2**31, torch.float32: 64, torch.bfloat16: 4, torch.float16: 4}
"""Units in the last place that are no difference. float32: XLA's own approximations of transcendental functions
are good for some 5e-6; so are its float64 ones, some of which go through float32."""


@dataclass(frozen=True)
class Verdict:
    """What was found of one result.

    kind: "same", or what differs: "type", "dtype", "shape", "value", "alias", "device", "distribution".
    ratio: the largest error as a multiple of the one that is allowed; above 1 it is a difference. infinite where
    there is nothing to measure.
    """

    kind: str
    detail: str = ""
    ratio: float = 0.0

    def row(self) -> dict[str, Any]:
        ratio = min(self.ratio, 1e9)
        return {"kind": self.kind, "detail": self.detail, "ratio": float(f"{ratio:.3g}")}


def differs(kind: str, detail: str) -> Verdict:
    """A difference that has no size."""
    return Verdict(kind, detail, float("inf"))


def _unit(reference: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """The distance of the numbers of a dtype at each element; below the scale, as at the scale."""
    info = torch.finfo(dtype)
    smallest = info.smallest_normal if dtype != torch.float16 else info.smallest_normal * info.eps * 2
    magnitude = reference.abs().clamp(min=max(scale, smallest)).nan_to_num(0.0, info.max, info.max)
    return torch.exp2(torch.floor(torch.log2(magnitude))) * info.eps


def _real(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def _strided(t: torch.Tensor) -> torch.Tensor:
    return t if t.layout == torch.strided else t.to_dense()


def units_apart(found: torch.Tensor, cpu: torch.Tensor, reference: torch.Tensor | None) -> tuple[float, float]:
    """Largest error of XLA and of the CPU in units in the last place; elements that agree count as the CPU's."""
    dtype = found.dtype
    found64, cpu64 = found.double(), cpu.double()
    target = cpu64 if reference is None else reference.double()
    finite = target[target.isfinite()]
    scale = float(finite.abs().square().mean().sqrt()) * 2**-6 if finite.numel() else 0.0
    unit = _unit(target, dtype, min(scale, torch.finfo(dtype).max))
    same = (found64 == cpu64) | (found64.isnan() & cpu64.isnan())
    right = (found64 == target.to(dtype).double()) | (found64.isnan() & target.isnan())

    def largest(values: torch.Tensor, skip: torch.Tensor) -> float:
        error = ((values - target).abs() / unit).nan_to_num(float("inf"), float("inf"))
        return float(error.masked_fill(skip, 0.0).max()) if error.numel() else 0.0

    cpu_right = (cpu64 == target.to(dtype).double()) | (cpu64.isnan() & target.isnan()) | ~cpu64.isfinite()
    return largest(found64, same | right), largest(cpu64, cpu_right)


def compare(found: Any, cpu: Any, reference: Any, *, values: bool = True) -> Verdict:  # noqa: PLR0911
    """The verdict on one leaf of the results."""
    if not isinstance(cpu, torch.Tensor):
        same = type(found) is type(cpu) and (found == cpu or found != found)  # noqa: PLR0124
        return Verdict("same") if same else differs("type", f"{found!r:.60}, on the CPU {cpu!r:.60}")
    if not isinstance(found, torch.Tensor):
        return differs("type", f"{type(found).__name__}, on the CPU a tensor")
    if found.dtype != cpu.dtype:
        return differs("dtype", f"{_name(found.dtype)}, on the CPU {_name(cpu.dtype)}")
    if found.shape != cpu.shape:
        return differs("shape", f"{list(found.shape)}, on the CPU {list(cpu.shape)}")
    if not values or not cpu.numel():
        return Verdict("same")
    found, cpu = _real(_strided(found)), _real(_strided(cpu))
    if cpu.dtype not in UNITS:
        unequal = int((found.double() != cpu.double()).sum() if cpu.is_floating_point() else (found != cpu).sum())
        return differs("value", f"{unequal} of {cpu.numel()} are not equal") if unequal else Verdict("same")
    wanted = _real(_strided(reference)) if isinstance(reference, torch.Tensor) else None
    if wanted is not None and (wanted.shape != cpu.shape or not wanted.dtype.is_floating_point):
        wanted = None
    apart, own = units_apart(found, cpu, wanted)
    ratio = apart / max(FACTOR * own, UNITS[cpu.dtype])
    detail = f"off by {apart:.3g} units in the last place, on the CPU {own:.3g}"
    return Verdict("value", detail, ratio) if ratio > 1 else Verdict("same", "", ratio)


def compare_all(found: list[Any], cpu: list[Any], reference: list[Any] | None, *, values: bool = True) -> Verdict:
    """The worst verdict of several results."""
    if len(found) != len(cpu):
        return differs("type", f"{len(found)} results, on the CPU {len(cpu)}")
    verdicts = [Verdict("same")]
    for i, (x, y) in enumerate(zip(found, cpu, strict=True)):
        if (x is None) != (y is None):
            verdicts.append(differs("type", f"gradient {i} is {'None' if x is None else 'there'}, unlike the CPU's"))
        elif y is not None:
            verdicts.append(compare(x, y, reference and reference[i], values=values))
    return max(verdicts, key=lambda verdict: (verdict.kind != "same", verdict.ratio))


def promoted(found: list[Any], wanted: list[Any] | None) -> Verdict:
    """The verdict on what the CPU refuses, beside what it computes of float64: the same but for rounding.

    Without that there is nothing to compare.
    """
    for x, y in zip(found, wanted or found, strict=True):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and not _near(x, y):
            return differs("unrefused", f"{_name(x.dtype)} that are not what float64 gives")
    return Verdict("same")


def _near(x: torch.Tensor, y: torch.Tensor) -> bool:
    x, y = _real(_strided(x)).double(), _real(_strided(y)).double()
    return x.shape == y.shape and torch.allclose(x, y, 0.05, 0.05, equal_nan=True)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
