"""The processor seconds of a step as it is, or of its audit. Run by audit_speed.py in a patched environment.

    python audited_seconds.py llama plain|audit  two steps of audited_llama.py on CPU-XLA, or their audit
    python audited_seconds.py vit                a step of tests/audit/vit.py on the meta device, and its --meta audit

Prints JSON. What is imported is not part of the seconds; making the model is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.update(PJRT_DEVICE="CPU", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "audit")]

ROUNDS = 5


def seconds_of(function: Callable[[], object]) -> float:
    """The processor time of all threads."""
    start = time.process_time()
    function()
    return time.process_time() - start


def llama(audited: bool) -> dict[str, float]:
    import audited_models
    import torch_xla

    from castoff.audit import worker

    program = str(ROOT / "bench" / "workers" / "audited_llama.py")
    # What audited_llama.py imports, and what a first graph loads.
    assert audited_models.torch_xla is torch_xla
    torch_xla._XLAC._get_xla_tensors_hlo([audited_models.torch.ones(2, device="xla") + 1])

    def plain() -> None:
        step = worker._step_of(program, "step")
        for _ in range(2):
            loss = step()
            torch_xla.sync(wait=True)
        assert loss.isfinite()

    def audit() -> None:
        report = worker._on_xla(program, "step", 2, "xla", "shapes")
        assert report["casts"]

    return {"seconds": seconds_of(audit if audited else plain)}


def vit() -> dict[str, float]:
    import torch
    import vit

    from castoff.audit.meta import audit_meta

    def step() -> None:
        with torch.device("meta"):
            vit.step()

    # The least of some rounds: now and then Python collects garbage for 0.2 s.
    ways = {"step": step, "audit": lambda: audit_meta(lambda: vit.step)}
    found = [{way: seconds_of(function) for way, function in ways.items()} for _ in range(ROUNDS + 1)][1:]
    return {way: min(seconds[way] for seconds in found) for way in ways}


if __name__ == "__main__":
    print(json.dumps(vit() if sys.argv[1] == "vit" else llama(sys.argv[2] == "audit")))
