"""One training step that uses no topic. Run by unused_topics.py in a stock and in a patched environment.

python training_step.py ir            IR and HLO of forward, backward and optimizer on CPU-XLA
python training_step.py instructions  a backward on the CPU, an assignment to .grad, and Function.apply, under callgrind
"""

import argparse
import functools
import itertools
import json
import os
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")

GRAPHS = 200
FUNCTIONS = 8

MODEL = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 16),
    torch.nn.Tanh(),
    torch.nn.Linear(16, 16),
    torch.nn.LayerNorm(16),
    torch.nn.Linear(16, 4),
)
x = torch.randn(8, 16)
"""


def ir() -> dict[str, str]:
    """The texts of the step's three graphs, in bfloat16 and in float32."""
    import torch
    import torch_xla

    texts = {}
    for dtype in (torch.float32, torch.bfloat16):
        scope: dict[str, Any] = {}
        exec(MODEL, scope)
        if dtype is torch.bfloat16:
            del scope["model"][3]  # layer_norm of bfloat16 is of values
        model, x = scope["model"].to(dtype).to("xla"), scope["x"].to(dtype).to("xla")
        # AdamW's lerp of bfloat16 tensors is of values.
        kind = {torch.float32: torch.optim.AdamW, torch.bfloat16: torch.optim.Adagrad}[dtype]
        optimizer = kind(model.parameters(), lr=1e-3)
        torch_xla.sync()
        loss = model(x).square().sum()  # a bfloat16 mean is of wide-reductions
        parts = {"forward": [loss]}
        loss.backward()
        parts["backward"] = [p.grad for p in model.parameters()]
        optimizer.step()
        parts["optimizer"] = list(model.parameters())
        for name, tensors in parts.items():
            texts[f"{dtype} {name} IR"] = torch_xla._XLAC._get_xla_tensors_text(tensors)
            texts[f"{dtype} {name} HLO"] = torch_xla._XLAC._get_xla_tensors_hlo(tensors)
        torch_xla.sync()
    return texts


def doubling() -> Any:
    """A new autograd.Function that doubles its input.

    Python finds a method by its class's version and its name's address in a small table; whether two methods
    share a row differs from class to class.
    """
    import torch

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, a):
            return a * 2

        @staticmethod
        def backward(_ctx, grad):
            return grad * 2

    return Double


def instructions() -> None:
    """Run what bench/shared/callgrind.py counts, each part often enough for Python to have specialized its code."""
    import torch
    from shared.callgrind import counted

    torch.set_num_threads(1)
    scope: dict[str, object] = {}
    exec(MODEL, scope)
    # Many graphs: the engine finds nodes by their addresses, which collide more often in one graph than in another.
    graphs = itertools.cycle([scope["model"](scope["x"]).square().mean() for _ in range(GRAPHS)])
    leaf, gradient = torch.nn.Parameter(torch.randn(4)), torch.randn(4)
    parts = [
        ("a CPU backward", GRAPHS, lambda: next(graphs).backward(retain_graph=True)),
        ("p.grad = t", 500, lambda: setattr(leaf, "grad", gradient)),
        *(("Function.apply", 50, functools.partial(doubling().apply, leaf)) for _ in range(FUNCTIONS)),
    ]
    for part, number, run in parts:
        for _ in range(number):
            run()
        with counted(part):
            for _ in range(number):
                run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ir", "instructions"])
    if parser.parse_args().what == "ir":
        print(json.dumps(ir()))
    else:
        instructions()
