"""AdamW with bfloat16 weights and float32 gradients: its loss beside that of float32 training.

    PJRT_DEVICE=CPU python examples/adamw_bf16_wide_grads.py

A small network learns what another one computes, with gradients accumulated over micro-batches, four times
from the same start and with the same data:

float32         float32 weights and gradients
wide            bfloat16 weights, whose gradients wide_grads() makes float32
float32 buffer  bfloat16 weights and gradients, which are added to a float32 buffer: what people do by hand
bfloat16        bfloat16 weights and gradients, summed in bfloat16

AdamW wants its state and the weight that it updates in float32, as a step of 1e-3 of a bfloat16 number rounds
to nothing. So the optimizer has float32 copies of the weights, the gradient goes to them as it is, and after
a step they are copied back. Prints the losses, and how far from float32's gradients those of the first step are.
"""

import argparse
import json
import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch
import torch_xla
from torch_xla.amp import wide_grads

KINDS = ("float32", "wide", "float32 buffer", "bfloat16")
BATCH, FEATURES, OUTPUTS = 32, 64, 16


def network() -> torch.nn.Module:
    """A new network of two layers, in float32 on the CPU."""
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 128), torch.nn.GELU(), torch.nn.Linear(128, OUTPUTS))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs, exact in bfloat16, and what a network that is not trained makes of them."""
    torch.manual_seed(0)
    teacher = network()
    inputs = [torch.randn(BATCH, FEATURES).bfloat16().float() for _ in range(count)]
    with torch.no_grad():
        return [(x, teacher(x)) for x in inputs]


def train(kind: str, steps: int, data: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[list[float], torch.Tensor]:
    """The loss of each step, and all gradients of the first one.

    Args:
        kind: One of KINDS.
        steps: How often the weights are updated.
        data: The micro-batches of one step.
    """
    torch.manual_seed(1)
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    module = network().to(dtype).to("xla")
    if kind == "wide":
        wide_grads(module)
    weights = list(module.parameters())
    masters = [weight.detach().float().clone() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    moved = [(x.to(dtype).to("xla"), y.to("xla")) for x, y in data]
    losses, first = [], torch.empty(0)
    for step in range(steps):
        total = torch.zeros((), device="xla")
        for x, y in moved:
            loss = torch.nn.functional.mse_loss(module(x).float(), y) / len(moved)
            loss.backward()
            total += loss.detach()
            if kind == "float32 buffer":
                for master, weight in zip(masters, weights, strict=True):
                    master.grad = weight.grad.float() if master.grad is None else master.grad + weight.grad
                module.zero_grad()
            torch_xla.sync()
        if kind != "float32 buffer":
            for master, weight in zip(masters, weights, strict=True):
                master.grad = weight.grad.float()  # no cast where it is float32
        if step == 0:
            first = torch.cat([master.grad.flatten().cpu() for master in masters])
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
        optimizer.zero_grad()
        module.zero_grad()
        torch_xla.sync()
        losses.append(total.item())
    return losses, first


def main() -> None:
    """Train in each way, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="updates of the weights (%(default)s)")
    parser.add_argument("--micro-batches", type=int, default=32, help="of one update (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    data = batches(options.micro_batches)
    results = {kind: train(kind, options.steps, data) for kind in KINDS}
    exact = results["float32"][1]
    distances = {kind: ((first - exact).norm() / exact.norm()).item() for kind, (_, first) in results.items()}
    if options.json:
        print(json.dumps({"losses": {kind: losses for kind, (losses, _) in results.items()}, "distances": distances}))
        return
    print("step  " + "".join(f"{kind:>16}" for kind in KINDS))
    for step in range(0, options.steps, max(1, options.steps // 10)):
        print(f"{step:4}  " + "".join(f"{results[kind][0][step]:16.6f}" for kind in KINDS))
    print("grad  " + "".join(f"{distances[kind]:16.1e}" for kind in KINDS))


if __name__ == "__main__":
    main()
