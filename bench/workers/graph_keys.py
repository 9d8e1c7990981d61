"""What a graph's key takes, and how often graphs are compiled. Run by graph_identity.py.

python graph_keys.py instructions  callgrind counts the tracing of a transformer's training step and its key, as
                                   "step", and as their numbers of nodes the keys of graphs of 1,000 to 100,000 nodes
python graph_keys.py compilations  prints, for each of the audited models, how often 8 training steps compile
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("PJRT_DEVICE", "CPU")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "ir"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch_xla
import torch_xla.debug.metrics as met
from shared import callgrind

STEPS = 8
NODES = (1_000, 10_000, 100_000)


def key_of(*tensors: torch.Tensor) -> None:
    torch_xla._XLAC._get_graph_hash(list(tensors))


def step() -> None:
    from small_transformer import gradients, loss_of, model_and_data

    model, *data = model_and_data()

    def trace() -> None:
        loss_of(model, *data).backward()
        key_of(*gradients(model))
        model.zero_grad()

    trace()
    trace()
    with callgrind.counted("step"):
        trace()


def nodes(count: int) -> None:
    leaves = [torch.full((2,), float(i)).to("xla") for i in range(8)]
    torch_xla.sync()
    value = leaves[0]
    for i in range((count - len(leaves)) // 2):
        value = (value - leaves[i % 8]).abs()
    key_of(value)
    with callgrind.counted(str(count)):
        key_of(value)


def instructions() -> None:
    step()
    for count in NODES:
        nodes(count)


def compilations() -> None:
    from audited_models import MODELS, step_of

    found = {}
    for name in MODELS:
        take_step = step_of(name, "autocast", topics=False)
        met.clear_all()
        for _ in range(STEPS):
            take_step()
            torch_xla.sync()
        found[name] = met.metric_data("CompileTime")[0]
    print(json.dumps(found))


if __name__ == "__main__":
    {"instructions": instructions, "compilations": compilations}[sys.argv[1]]()
