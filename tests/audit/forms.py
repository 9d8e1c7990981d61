"""Steps that run in other ways than one operation after another: what an audit counts, and what their HLO has.

    XLA_SAVE_TENSORS_FILE=FILE python forms.py

The last line of the output is JSON: by form, the converts in the HLO of a step without an audit, those of its
audit, and what the audit says of each cast.
"""

import gc
import json
import os
import sys
from collections import Counter
from pathlib import Path

os.environ.update(PJRT_DEVICE="CPU", XLA_SAVE_TENSORS_FMT="hlo")
sys.path.append(str(Path(__file__).resolve().parents[2]))

import torch
import torch_xla
from converts import converts
from torch import nn
from torch_xla.experimental.scan import scan

from castoff.audit import audit

BF16 = torch.bfloat16


def rounded(x):
    return x.sin().bfloat16().float() * 2


def body(carry, x):
    carry = (carry.bfloat16() + x.bfloat16()).float()
    return carry, carry


def trained(model, x):
    def step():
        model.zero_grad()
        loss = model(x.to(BF16)).float().sum()
        loss.backward()
        return loss

    return step


def autocast(model, x):
    def step():
        with torch.autocast("xla", dtype=BF16):
            return model(x).sin()

    return step


def linear(dtype):
    return nn.Linear(8, 4, bias=False).to("xla", dtype)


def forms():
    x = torch.ones(4, 8).to("xla")
    compiled = torch.compile(rounded, backend="openxla")
    of_xla = torch_xla.compile(rounded)
    return {
        "torch.compile": lambda: compiled(x),
        "torch.compile, a training step": trained(torch.compile(linear(BF16), backend="openxla"), x),
        "torch.compile, autocast": autocast(torch.compile(linear(torch.float32), backend="openxla"), x),
        "torch_xla.compile": lambda: of_xla(x),
        "scan": lambda: scan(body, x[0], x),
    }


def told(cast):
    return [
        cast.phase,
        f"{cast.source} {cast.target}",
        cast.why,
        cast.place and Path(cast.place.file).name,
        cast.module,
    ]


def main():
    saved = Path(os.environ["XLA_SAVE_TENSORS_FILE"] + ".0")
    found = {}
    for name, step in forms().items():
        torch_xla.sync()
        for _ in range(2):  # the first compiles
            size = saved.stat().st_size if saved.exists() else 0
            kept = step()
            gc.collect()
            torch_xla.sync()
            del kept
        by_hand = converts(saved.read_bytes()[size:].decode())
        report = audit(step)
        found[name] = {
            "by hand": by_hand,
            "audit": Counter(f"{cast.source} {cast.target}" for cast in report.casts),
            "casts": [told(cast) for cast in report.casts],
            "graphs": [[graph.reason, graph.place.split(":")[0]] for graph in report.graphs],
        }
        torch_xla.sync()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
