"""wide-reductions on the TPU compiler: accumulating in float32 costs no more than stock.

The same program is traced with the topic and, in a process of its own, without it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
N = 4096
FORMS = {
    "mean": "x.mean()",
    "mean of rows": "x.mean(1)",
    "mean in float32": "x.mean(1, dtype=torch.float32)",
    "cumsum": "x.cumsum(1)",
    "softmax": "x.softmax(-1)",
    "softmax backward": "backward(lambda x: x.softmax(-1))",
    "cross_entropy": "F.cross_entropy(x, target)",
    "cross_entropy backward": "backward(lambda x: F.cross_entropy(x, target))",
    "layer_norm": "F.layer_norm(x, (N,))",
    "layer_norm backward": "backward(lambda x: F.layer_norm(x, (N,), weight, weight))",
    "mse_loss backward": "backward(lambda x: F.mse_loss(x, y))",
    "gelu": "F.gelu(x)",
    "gelu backward": "backward(F.gelu)",
}
PROGRAM = f"""
import sys
import torch, torch_xla
import torch.nn.functional as F
sys.path.insert(0, {str(ROOT)!r})
from castoff.tpu.trace import program_of

N = {N}

def data(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype).to("xla")

def backward(function):
    x.requires_grad_()
    out = function(x)
    return torch.autograd.grad(out, x, torch.ones_like(out) if not out.dim() else data(*out.shape))[0]

x, y, weight, target = data(N, N), data(N, N), data(N), data(N, dtype=torch.int64)
torch_xla.sync()
sys.stdout.buffer.write(program_of([eval(sys.argv[1])])[0])
"""


def trace(form, **environment):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, form],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


@pytest.mark.parametrize("name", FORMS)
def test_costs_what_stock_costs(tpu_compiler, name):
    with_topic, without = trace(FORMS[name]), trace(FORMS[name], CASTOFF_DISABLE="wide-reductions")
    for topology in ("v5e:2x2", "v6e:2x2"):
        found, stock = (tpu_compiler.compile(program, topology) for program in (with_topic, without))
        print(f"{name}, {topology}: {found.estimated_cycles:,} cycles, stock {stock.estimated_cycles:,}")
        assert found.estimated_cycles <= stock.estimated_cycles
        assert found.memory["temp"] <= stock.memory["temp"]
