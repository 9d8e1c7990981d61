"""The tracing of a small transformer's training steps on CPU-XLA. Run by exact_casts.py under callgrind.

python transformer_tracing.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "ir"))

import torch
from shared import callgrind
from small_transformer import loss_of, model_and_data

STEPS = 2


def trace(kind: str) -> None:
    model, *data = model_and_data(torch.float32 if kind == "autocast" else torch.bfloat16)

    def step() -> None:
        loss_of(model, *data, amp=kind == "autocast").backward()
        model.zero_grad()

    for _ in range(2):
        step()
    with callgrind.counted(kind):
        for _ in range(STEPS):
            step()


if __name__ == "__main__":
    for kind in ("autocast", "bfloat16"):
        trace(kind)
