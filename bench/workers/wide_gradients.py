"""Steps of bfloat16 weights with and without wide gradients. Run by wide_weight_grad.py in both environments.

python wide_gradients.py accuracy      relative errors of a weight's gradient after 64 micro-batches
python wide_gradients.py instructions  instructions of tracing; under callgrind, which wide_weight_grad.py starts
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
import torch_xla
from training_step import MODEL

ROUNDS = 20
HAS_GRAD_DTYPE = hasattr(torch.Tensor, "grad_dtype")


def accuracy() -> dict[str, float]:
    """Errors against float64 of: bfloat16 gradients, a float32 buffer that they are added to, wide gradients."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    w, batches = numbers(256, 512), [(numbers(128, 512), numbers(128, 256)) for _ in range(64)]
    exact = sum(g.double().t() @ x.double() for x, g in batches)

    def error(found: torch.Tensor) -> float:
        return ((found.cpu().double() - exact).norm() / exact.norm()).item()

    def accumulate(weight: torch.Tensor, buffer: torch.Tensor | None = None) -> torch.Tensor:
        for x, g in batches:
            torch.nn.functional.linear(x.to("xla"), weight).backward(g.to("xla"))
            if buffer is not None:
                buffer += weight.grad
                weight.grad = None
            torch_xla.sync()
        return weight.grad if buffer is None else buffer

    def leaf() -> torch.Tensor:
        return w.to("xla").requires_grad_()

    errors = {
        "bfloat16 gradients": error(accumulate(leaf())),
        "float32 buffer": error(accumulate(leaf(), torch.zeros(256, 512, device="xla"))),
    }
    if HAS_GRAD_DTYPE:
        weight = leaf()
        weight.grad_dtype = torch.float32
        errors["float32 gradients"] = error(accumulate(weight))
    return errors


def measured(function: Callable[[], object]) -> None:
    """Dump what callgrind counts of each of `ROUNDS` calls, after one that fills caches."""
    function()
    for _ in range(ROUNDS):
        torch._C._valgrind_toggle()
        function()
        torch._C._valgrind_toggle_and_dump_stats()


def instructions() -> dict[str, int]:
    """Dump a product, a step, and a step with every weight wide, in that order; nothing is compiled or run."""
    # Importing torch_xla takes minutes while callgrind instruments it, so it starts to do so now.
    subprocess.run(["callgrind_control", "--instr=on", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    del scope["model"][3]  # layer_norm of bfloat16 is of values
    model, x = scope["model"].bfloat16().to("xla"), scope["x"].bfloat16().to("xla")
    weight = torch.zeros(16, 16, dtype=torch.bfloat16, device="xla", requires_grad=True)
    torch_xla.sync()

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    measured(lambda: torch.mm(x, weight))
    measured(step)
    if HAS_GRAD_DTYPE:
        for parameter in model.parameters():
            parameter.grad_dtype = torch.float32
        measured(step)
    return {"rounds": ROUNDS}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "instructions"])
    print(json.dumps({"accuracy": accuracy, "instructions": instructions}[parser.parse_args().what]()))
