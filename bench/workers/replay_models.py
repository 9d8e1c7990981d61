"""Trains models of bench/workers/model_zoo.py traced and replayed, and prints a line of JSON for each.

ENVIRONMENT/bin/python bench/workers/replay_models.py [NAME…] [--processes 2]

A run is eight steps of AdamW in float32, with and without padding in the batch. Losses, parameters and buffers have to
be equal to the bit. bench/replay_sweep.py --models counts what it prints.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "programs"))

from forks import rows
from runner import prepare

#: Optimized, XLA:CPU may fuse a graph in another way than one with fewer outputs.
UNOPTIMIZED = "--xla_llvm_disable_expensive_passes=true"

#: Whether a call's batch is padded. A graph is replayed when it was traced twice.
CALLS = (True, True, True, True, False, False, True, False)


def batches(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The model's own batch for each call, with and without padding."""
    import torch

    full = dict(batch)
    if "attention_mask" in batch:
        full["attention_mask"] = torch.ones_like(batch["attention_mask"])
        full["labels"] = batch["input_ids"].clone()
    return [batch if is_padded else full for is_padded in CALLS]


def trained(model: Any, batch: dict[str, Any], replay: bool) -> tuple[list[Any], dict[str, Any]]:
    """Losses and parameters on the CPU, and the replayed step's report."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    model = copy.deepcopy(model).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: dict[str, Any]) -> torch.Tensor:
        result = model(**batch)
        loss = result["loss"] if hasattr(result, "keys") else result[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    torch_xla.sync()
    xm.set_rng_state(1234)
    call, losses = torch_xla.replay(step) if replay else step, []
    for each in batches(batch):
        losses.append(call({key: value.to("xla") for key, value in each.items()}))
        torch_xla.sync()
    found = [tensor.detach().cpu() for tensor in (*losses, *model.parameters(), *model.buffers())]
    return found, call.report() if replay else {}


def outcome(name: str) -> dict[str, Any]:
    """ "equal" to the bit, "different", "traced in each call", or "refused" with the reason."""
    import model_zoo
    import torch_xla

    torch_xla.device()  # ahead of the first backward: the engine counts devices then
    try:
        model, batch = model_zoo.built(model_zoo.architectures()[name])
        expected, _ = trained(model, batch, replay=False)
    except Exception as failure:  # noqa: BLE001
        return {"name": name, "outcome": "unavailable", "reason": f"{type(failure).__name__}: {failure}"[:200]}
    try:
        found, report = trained(model, batch, replay=True)
    except RuntimeError as error:
        said = re.search("cannot be replayed: (.*)", str(error))
        if said is None:
            raise
        return {"name": name, "outcome": "refused", "reason": said[1].split(". This call")[0]}
    wrong = [i for i, pair in enumerate(zip(expected, found, strict=True)) if not same(*pair)]
    kind = "different" if wrong else "equal" if report["replayed"] else "traced in each call"
    report = {key: report[key] for key in ("replayed", "graphs", "reads", "ms_traced", "ms_replayed")}
    return {"name": name, "outcome": kind, "leaves": wrong[:8], **report}


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, but for the sign of a zero; NaN is NaN."""
    return bool(one.dtype == other.dtype and (one.nan_to_num() == other.nan_to_num()).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models, as package/name, or packages; all of them by default")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {UNOPTIMIZED}"
    prepare(("torch", "torch_xla", "transformers", "timm", "torchvision", "transformers.modeling_utils"))
    import model_zoo

    wanted = [
        name
        for name in model_zoo.architectures()
        if not options.names or {name, name.split("/")[0]} & set(options.names)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(wanted, outcome, processes=options.processes, logs=Path(folder)):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
