"""Programs that use one operator each, run on XLA and judged beside torch's CPU kernels; prints JSON.

    python bench/operator_programs.py

Run by operators.py in both environments. A program leaves its result in `r`. It is right if dtype, shape and value
are the CPU's: integers equal, floats with at most 1.5 times the CPU's error against float64, or a few units in the
last place (tests/operators/judge.py).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(PJRT_DEVICE="CPU")
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "operators"))

import judge
import torch
import torch_xla

#: What the programs begin with: x f32[64, 96], h the same in bfloat16, i int64, u uint8, b bool, z a 0-d float16.
NAMES = {"x": torch.float32, "h": torch.bfloat16, "i": torch.int64, "u": torch.uint8, "b": torch.bool}
SHAPE = (64, 96)

PROGRAMS = {
    "Results that alias their operand": [
        "l = i[:, 1:].contiguous(); l[l == 0] = -100; r = i",
        "l = i[:, 1:].reshape(-1); l += 1; r = i",
        "l = i[:, 1:].flatten(); l += 1; r = i",
        "l = x.t().contiguous(); l.mul_(2); r = x",
    ],
    "Reductions over all dimensions, and of 0-d tensors": [
        "r = x.amax()",
        "r = x.abs().amin()",
        "r = x.sum(())",
        "r = x.mean(())",
        "r = x.sum().amax(0)",
        "r = x.sum().softmax(-1)",
        "r = x.sum().index_select(0, i[:1, 0] * 0)",
        "r = b.all().any(0)",
    ],
    "bfloat16 that torch computes in float32": [
        "r = h.mean()",
        "r = h.mean(dtype=torch.float32)",
        "r = h.sum(dtype=torch.float32)",
        "r = h.softmax(-1)",
        "r = h.log_softmax(-1)",
        "r = h.var()",
        "r = h.norm()",
        "r = F.mse_loss(h, h.flip(0))",
        "r = F.cross_entropy(h, i[:, 0])",
        "r = F.logsigmoid(h)",
        "r = F.gelu(h)",
        "r = F.avg_pool2d(h[None, None], 4)",
        "r = h.cumsum(1)",
    ],
    "Random numbers": [
        "torch.manual_seed(0); a = torch.rand(8, device=x.device); torch.manual_seed(0); "
        "r = (a == torch.rand(8, device=x.device)).all()",
        "r = (F.dropout(torch.ones(20_000, device=x.device).bfloat16(), 0.004) == 0).any()",
        "r = (torch.rand(200_000, device=x.device, dtype=torch.bfloat16) < 1).all()",
    ],
    "Dtypes of results": [
        "r = torch.maximum(h, z)",
        "r = torch.maximum(z, h)",
        "r = b.cumsum(1)",
        "r = u.cumsum(1)",
        "r = u[:, :64].trace()",
        "r = torch.count_nonzero(b)",
        "r = u | i",
        "r = b & u",
        "r = i.clamp(max=0.5)",
        "r = torch.where(b, h, x)",
        "r = h + x",
        "r = (h * 0 - 1e9) == -1e9",
        "r = b.sqrt()",
        "r = (i == i).mean(dtype=torch.float32)",
    ],
    "Normalization": [
        "m = torch.nn.BatchNorm1d(96).to(x.device); m(x); r = m.running_var",
        "r = F.batch_norm(x, x[0], x[1].abs())",
        "r = F.layer_norm(h, (96,), x[0], x[1])",
    ],
    "Values": [
        "r = x.norm(float('inf'))",
        "r = x.norm('nuc')",
        "r = torch.pdist(x[:4], p=0)",
        "r = x.t().as_strided((3, 2), (2, 1))",
        "r = F.interpolate(x[None, None], scale_factor=1.3)",
        "r = F.avg_pool2d(x[None, None], 3, divisor_override=2)",
        "r = F.avg_pool2d(x[None, None], 3, ceil_mode=True)",
        "r = torch.div(x, 0.3, rounding_mode='floor')",
        "r = x.clamp(min=x[0])",
    ],
}


def tensors(device: torch.device | str, *, wide: bool = False) -> dict[str, torch.Tensor]:
    """The tensors that programs use; with `wide`, the floating-point ones in float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SHAPE, generator=generator)
    i = torch.randint(0, 96, SHAPE, generator=generator)
    values = {"x": x, "h": x.bfloat16(), "i": i, "u": i.to(torch.uint8), "b": x > 0}
    values["z"] = torch.tensor(0.5, dtype=torch.float16)
    if wide:
        values = {name: t.double() if t.is_floating_point() else t for name, t in values.items()}
    return {name: t.to(device) for name, t in values.items()}


def result(program: str, device: torch.device | str, *, wide: bool = False) -> Any:
    if wide:
        program = program.replace("torch.float32", "torch.float64")
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **tensors(device, wide=wide)}
    exec(program, names)
    return names["r"].cpu()


def verdict_on(program: str) -> str:
    """ "same", "raises", or what is different."""
    expected = result(program, "cpu")
    try:
        reference = result(program, "cpu", wide=True)
    except (RuntimeError, TypeError):
        reference = None
    try:
        found = result(program, torch_xla.device())
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return f"raises {type(error).__name__}"
    verdict = judge.compare(found, expected, reference)
    return verdict.kind if verdict.kind == "same" else f"{verdict.kind}: {verdict.detail}"


def main() -> None:
    print(json.dumps({program: verdict_on(program) for programs in PROGRAMS.values() for program in programs}))


if __name__ == "__main__":
    main()
