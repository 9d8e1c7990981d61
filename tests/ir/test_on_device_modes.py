"""on-device under torch.compile, SPMD, autocast and torch.func: patches/torch_xla/on-device."""

import os
from pathlib import Path

os.environ.setdefault("PJRT_DEVICE", "CPU")

import pytest
import torch
import torch_xla
from lowered import on_the_device, with_gradient
from other_process import run
from test_on_device import PROGRAMS, X

DEVICE = torch_xla.device()

fails_on_stock = pytest.mark.fails_on_stock

#: Their forward pass leaves the device on stock wheels.
SOME = ["grid_sample", "huber_loss", "lgamma", "igamma", "median", "logcumsumexp", "adaptive_avg_pool2d"]


@fails_on_stock
@pytest.mark.parametrize("name", SOME)
def test_compiled_functions_are_one_graph(name):
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[name], backend="openxla", fullgraph=True)
    found = on_the_device(lambda: compiled(X.to(DEVICE)))
    torch.testing.assert_close(found.cpu(), PROGRAMS[name](X), rtol=1e-4, atol=1e-5)


@fails_on_stock
@pytest.mark.parametrize("name", ["bilinear", "huber_loss", "lgamma", "logcumsumexp", "glu"])
def test_transforms_of_functions(name):
    def slope(x):
        return torch.func.grad(lambda x: PROGRAMS[name](x).sum())(x)

    def run_on(x):
        return slope(x), torch.func.vmap(PROGRAMS[name])(x[None].repeat(2, 1, 1, 1, 1))

    found = on_the_device(lambda: run_on(X.to(DEVICE)))
    torch.testing.assert_close([t.cpu() for t in found], list(run_on(X)), rtol=1e-4, atol=1e-5)


@fails_on_stock
@pytest.mark.parametrize("name", ["bicubic, antialiased", "grid_sample", "cdist", "logcumsumexp"])
def test_autocast_does_not_act_within_an_operator(name):
    expected = [t.cpu() for t in with_gradient(PROGRAMS[name], X.to(DEVICE))]
    with torch.autocast("xla", dtype=torch.bfloat16):
        found = on_the_device(lambda: with_gradient(PROGRAMS[name], X.to(DEVICE)))
    assert all(torch.equal(x.cpu(), y) for x, y in zip(found, expected, strict=True))


SPMD = """
import sys
from pathlib import Path
from castoff.audit import partitions
partitions.dump_to(Path(sys.argv[1]))
import numpy, torch, torch_xla, torch_xla.distributed.spmd as xs
from torch_xla.debug import metrics
torch_xla.runtime.use_spmd()
from test_on_device import PROGRAMS
mesh = xs.Mesh(numpy.arange(4), (4,), ("data",))
for name in sys.argv[2:]:
    x = torch.rand(8, 4, 5, 7).to("xla")
    xs.mark_sharding(x, mesh, ("data", None, None, None))
    x.requires_grad_()
    torch_xla.sync()
    y = PROGRAMS[name](x)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    text = partitions.partitioned([y.detach(), grad])
    assert "f32[2,4,5,7]" in text and "all-gather(" not in text and "all-reduce(" not in text, (name, text)
    torch_xla.sync()
assert metrics.executed_fallback_ops() == []
"""


@fails_on_stock
def test_sharded_tensors_are_not_gathered(tmp_path):
    names = ["bilinear", "dilated max_pool2d", "grid_sample", "lgamma", "logcumsumexp", "median", "unfold", "glu"]
    run("-c", SPMD, tmp_path, *names, CPU_NUM_DEVICES="4", PYTHONPATH=str(Path(__file__).resolve().parents[2]))
