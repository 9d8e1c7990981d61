"""Prints what tracing a training step of a model costs on the wheels of this environment, as JSON: {"ms": 12.3}.

ENVIRONMENT/bin/python bench/workers/model_tracing_worker.py transformers/llama
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "programs"))

import host_time
from runner import prepare

WARM, STEPS = 4, 12


def main() -> None:
    prepare(("torch", "torch_xla", "transformers"))
    import model_zoo
    import torch
    import torch_xla
    from torch_xla.core import xla_model

    device = torch_xla.device()
    model, batch = model_zoo.built(model_zoo.architectures()[sys.argv[1]])
    model = model.to(device)
    batch = {key: value.to(device) for key, value in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def trace() -> None:
        result = model(**batch)
        (result["loss"] if hasattr(result, "keys") else result[0]).backward()
        optimizer.step()
        optimizer.zero_grad()

    costs = []
    for _ in range(WARM + STEPS):
        torch_xla.sync()
        xla_model.wait_device_ops()
        costs.append(host_time.of_step(trace, torch_xla.sync)[0])
    print(json.dumps({"ms": min(costs[WARM:]) * 1000}))


if __name__ == "__main__":
    main()
