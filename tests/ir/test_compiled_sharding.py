"""Marks of sharding in compiled functions: patches/torch_xla/compiled-sharding."""

import pytest
from expecttest import assert_expected_inline
from marks import fails_on_stock
from other_process import forked

START = """
import torch, torch_xla
import numpy as np
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (2, 2), ("x", "y"))
x = torch.arange(16.0).view(4, 4).to("xla")

def sharding(t):
    return torch_xla._XLAC._get_xla_sharding_spec(t)

def marked(t):
    return torch.ops.xla.dynamo_mark_sharding(t, [0, 1, 2, 3], [2, 2], "('x', 'y')", "('x', 'y')")
"""

OPERATOR = """
compiled = torch.compile(lambda t: marked(t + 1) * 2, backend="openxla", fullgraph=True)
for _ in range(2):
    found = compiled(x)
    assert sharding(found) == "{devices=[2,2]0,1,2,3}", sharding(found)
    assert torch.equal(found.cpu(), (x.cpu() + 1) * 2)
"""

GRAPH = """
from ir_text import ir

print(ir(marked(x + 1) * 2), end="")
"""

GRADIENT = """
def loss(t, w):
    return (marked(t @ w).relu() @ w).sum()

found = []
for function in loss, torch.compile(loss, backend="openxla"):
    w = (torch.arange(16.0).view(4, 4).to("xla") - 5).requires_grad_()
    function(x, w).backward()
    found.append(w.grad.cpu())
w = (torch.arange(16.0).view(4, 4) - 5).requires_grad_()
((x.cpu() @ w).relu() @ w).sum().backward()
for grad in found:
    torch.testing.assert_close(grad, w.grad)
"""

TRAINING = """
def gradients(device):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).to(device)
    run = torch.compile(model, backend="openxla") if device == "xla" else model
    for i in range(3):
        t = torch.arange(16.0).view(4, 4).sub(i).sin().to(device)
        if device == "xla":
            xs.mark_sharding(t, mesh, ("x", None))
        run(t).square().sum().backward()
        yield model.weight.grad.cpu()
        model.zero_grad()

torch.testing.assert_close(list(gradients("xla")), list(gradients("cpu")))
"""

FUNCTION = """
@torch.compile(backend="openxla")
def compiled(t):
    y = t + 1
    xs.mark_sharding(y, mesh, ("x", "y"))
    return y * 2

for _ in range(2):
    found = compiled(x)
    assert sharding(found) == "{devices=[2,2]0,1,2,3}", sharding(found)
    assert torch.equal(found.cpu(), (x.cpu() + 1) * 2)
"""


@fails_on_stock
def test_ir_of_a_mark():
    ir = forked("-c", START + GRAPH, CPU_NUM_DEVICES="4").stdout
    assert_expected_inline(
        ir,
        """\
%0 = f32[] xla::device_data()
%1 = f32[] prim::Constant()
%2 = f32[] prim::Constant()
%3 = f32[4,4] xla::device_data()
%4 = f32[4,4] aten::add(%3, %2, %1)
%5 = f32[4,4] xla::custom_sharding(%4)
%6 = f32[4,4] aten::mul(%5, %0)
return %6
""",
    )


@fails_on_stock
@pytest.mark.parametrize(
    "program", [OPERATOR, GRADIENT, FUNCTION, TRAINING], ids=["operator", "gradient", "function", "training"]
)
def test_a_mark(program):
    forked("-c", START + program, CPU_NUM_DEVICES="4")
