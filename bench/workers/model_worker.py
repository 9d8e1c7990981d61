"""Runs small models on the wheels of this environment, against the CPU, and prints a line of JSON for each.

    ENVIRONMENT/bin/python bench/workers/model_worker.py [NAME…]

Each model runs in a fork of this process, in float32, bfloat16 and under autocast: a forward with its loss, a backward,
buffers, and four steps of AdamW. The CPU's float64 is the reference, or its float32 for a model that has no float64.
XLA's error may be a multiple of the error of the CPU in that mode: of the largest of a few runs there, of which all but
one begin with parameters that are rounded otherwise. Some models make much of an error of rounding: AdamW divides
gradients by their size, and those that are zero but for rounding, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "programs"))

from forks import rows  # noqa: E402
from runner import prepare  # noqa: E402

MODES = ("float32", "bfloat16", "autocast")
STEPS = 4
FLOAT32 = 2e-3
"""The error that float32 may have, of a tensor's norm."""
FACTOR, FLOOR = 3.0, 2e-2
"""So many times the error of the CPU in that mode; in bfloat16 and under autocast this besides."""
PERTURBED = 2
"""So many runs on the CPU with parameters that are rounded otherwise."""
SMALL_GRADIENT = 1e-4
"""Gradients are compared with at least this share of the largest gradient's norm: some are zero but for rounding."""
SMALL_BUFFER = 1e-2
"""Buffers likewise: the mean of a batch that BatchNorm has normalized before is zero but for rounding."""


@dataclass
class Ran:
    """What a model did on a device."""

    outputs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)


def outputs_of(result: Any) -> dict[str, Any]:
    import torch

    items = result.items() if hasattr(result, "items") else enumerate(result)
    return {str(key): value for key, value in items if isinstance(value, torch.Tensor) and value.is_floating_point()}


def run(model: Any, batch: dict[str, Any], mode: str, device: str) -> Ran:
    """Run a copy of a model on a device."""
    import torch
    import torch_xla

    model = copy.deepcopy(model)
    if mode in ("bfloat16", "float64"):
        dtype = getattr(torch, mode)
        model = model.to(dtype)
        batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
    model = model.to(device)
    batch = {key: value.to(device) for key, value in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ran, losses, first = Ran(), [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mode == "autocast"):
            result = outputs_of(model(**batch))
        result["loss"].backward()
        losses.append(result["loss"].detach())
        if step == 0:
            first = {"outputs": result}
            first["gradients"] = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            first["buffers"] = {n: b.clone() for n, b in model.named_buffers() if b.is_floating_point()}
        optimizer.step()
        if device == "xla":
            torch_xla.sync()  # a step is one graph
    ran.dtypes = {key: str(value.dtype) for key, value in first["outputs"].items()}
    for part, tensors in first.items():
        setattr(ran, part, {name: tensor.detach().cpu().double().clone() for name, tensor in tensors.items()})
    ran.losses = [loss.item() for loss in losses]
    return ran


def perturbed(model: Any, mode: str, seed: int) -> Any:
    """A copy of a model of which each parameter is rounded otherwise, by up to an epsilon of the mode's dtype."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    epsilon = torch.finfo(torch.float32 if mode == "float32" else torch.bfloat16).eps
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + epsilon * (2 * torch.rand(parameter.shape, generator=generator) - 1))
    return model


def norm(tensor: Any) -> float:
    return float(tensor.norm())


def error(found: Any, right: Any, floor: float = 0.0) -> float:
    """The norm of a difference, of the norm of what is right."""
    if found.shape != right.shape:
        return float("inf")
    finite = right.isfinite()
    if bool((found.isfinite() != finite).any()):
        return float("inf")
    apart = norm((found - right)[finite])
    return apart / max(norm(right[finite]), floor, 1e-20) if apart else 0.0


def worst(
    found: dict[str, Any], cpus: list[dict[str, Any]], right: dict[str, Any], floor: float, always: float
) -> tuple[float, str]:
    """The largest error of what is allowed, and its tensor."""
    most = (0.0, "")
    for name, wanted in right.items():
        ours = error(found[name], wanted, floor)
        allowed = FACTOR * max(error(cpu[name], wanted, floor) for cpu in cpus) + always
        if ours != ours or ours / allowed > most[0]:  # noqa: PLR0124
            most = (ours / allowed, f"{name}: error {ours:.2g}, allowed {allowed:.2g}")
    return most


def judged(found: Ran, cpus: list[Ran], right: Ran, mode: str) -> tuple[str, str]:
    """The kind of the outcome, and what was found. The first run on the CPU is that of the model as it is."""
    cpu = cpus[0]
    always = FLOAT32 if mode == "float32" else FLOOR
    if found.dtypes != cpu.dtypes:
        differ = [
            f"{k}: {v}, on the CPU {cpu.dtypes.get(k)}" for k, v in found.dtypes.items() if cpu.dtypes.get(k) != v
        ]
        if mode == "float32":
            return "wrong dtype", "; ".join(differ) or "outputs are missing"
    if found.gradients.keys() != cpu.gradients.keys():
        return "wrong gradient", f"of {sorted(found.gradients.keys() ^ cpu.gradients.keys())[:2]}: there or not there"
    largest = max((norm(value) for value in right.gradients.values()), default=0.0)
    buffers = max((norm(value) for value in right.buffers.values()), default=0.0)
    floors = {"outputs": 1e-6, "gradients": SMALL_GRADIENT * largest, "buffers": SMALL_BUFFER * buffers}
    for part, floor in floors.items():
        ratio, where = worst(
            getattr(found, part), [getattr(cpu, part) for cpu in cpus], getattr(right, part), floor, always
        )
        if ratio > 1 or ratio != ratio:  # noqa: PLR0124
            return f"wrong {part.removesuffix('s')}", where
    apart = 0.0  # trainings that have parted do not meet again
    for ours, wanted, *theirs in zip(found.losses, right.losses, *(cpu.losses for cpu in cpus), strict=True):
        apart = max(apart, *(abs(loss - wanted) for loss in theirs))
        allowed = max(5e-3 * abs(wanted), FACTOR * apart) + (0 if mode == "float32" else FLOOR)
        if abs(ours - wanted) > allowed:
            return "wrong training", f"losses {found.losses}, on the CPU {cpu.losses}"
    return "right", ""


def total_error(found: Ran, right: Ran) -> float:
    """The error of all gradients together; one that is missing is all wrong."""
    apart = sum(norm(found.gradients.get(name, 0 * value) - value) ** 2 for name, value in right.gradients.items())
    return (apart / max(sum(norm(value) ** 2 for value in right.gradients.values()), 1e-30)) ** 0.5


def outcome(name: str) -> dict[str, Any]:
    """What a model does in each mode."""
    import model_zoo
    import torch_xla
    from torch_xla.debug import metrics

    torch_xla.device()  # ahead of the first backward: the engine counts devices then
    try:
        model, batch = model_zoo.built(model_zoo.architectures()[name])
        narrow = run(model, batch, "float32", "cpu")
    except Exception as failure:  # noqa: BLE001
        return {"name": name, "unavailable": f"{type(failure).__name__}: {failure}"[:200]}
    try:
        right = run(model, batch, "float64", "cpu")
    except Exception:  # noqa: BLE001
        right = narrow
    row: dict[str, Any] = {"name": name, "parameters": sum(p.numel() for p in model.parameters())}
    for mode in MODES:
        try:
            cpu = narrow if mode == "float32" else run(model, batch, mode, "cpu")
        except Exception as failure:  # noqa: BLE001
            print(f"{mode} on the CPU: {failure}", file=sys.stderr)
            continue
        others = [run(perturbed(model, mode, seed), batch, mode, "cpu") for seed in range(PERTURBED)]
        metrics.clear_all()
        try:
            found = run(model, batch, mode, "xla")
            kind, detail = judged(found, [cpu, *others], right, mode)
        except Exception as failure:  # noqa: BLE001
            traceback.print_exc()
            first = next((line for line in str(failure).splitlines() if line.strip()), "")
            row[mode] = {"kind": f"raises {type(failure).__name__}", "detail": first[:160]}
            continue
        compiled = metrics.metric_data("CompileTime")
        row[mode] = {
            "kind": kind,
            "detail": detail,
            "compilations": compiled[0] if compiled else 0,
            "left": sorted(metrics.executed_fallback_ops()),
        }
        if mode != "float32":
            row[mode]["error"] = round(total_error(found, right) / max(total_error(cpu, right), 1e-6), 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models, as package/name, or packages; all of them by default")
    parser.add_argument("--list", action="store_true", help="print the names, and end")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--logs", type=Path, help="keep what the models print in this folder")
    options = parser.parse_args()
    prepare(("torch", "torch_xla", "transformers", "timm", "torchvision", "transformers.modeling_utils"))
    import model_zoo

    known = model_zoo.architectures()
    if options.list:
        print("\n".join(known))
        return
    wanted = [name for name in known if not options.names or {name, name.split("/")[0]} & set(options.names)]
    with tempfile.TemporaryDirectory() as folder:
        logs = (options.logs or Path(folder)).resolve()
        logs.mkdir(exist_ok=True, parents=True)
        for row in rows(wanted, outcome, processes=options.processes, logs=logs):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
