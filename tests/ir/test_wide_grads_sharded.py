"""Wide gradients of sharded weights: under SPMD on four devices, and in XlaFullyShardedDataParallel.

SPMD wants a process of its own, whose program prints what the tests look at. The ranks of FSDP cannot run here:
XLA:CPU has no all-reduce of bfloat16, which is what gathers the parameters. One rank has the same graph.
"""

import json
import re

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked
from tensors import DEVICE, bf16, f32, f64, random
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, checkpoint_module


def run(program, folder, **environment):
    """The JSON that ``program`` prints last, in a process of its own."""
    file = folder / "program.py"
    file.write_text(program)
    lines = forked(file, **environment).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


# ---- SPMD

SPMD = r'''
import glob, json, os, re, sys
dump = os.environ["DUMP"]
os.environ["XLA_FLAGS"] = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
import numpy as np
import torch, torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from patched_linear import apply_xla_patch_to_nn_linear
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

xr.use_spmd()
bf16, f32 = torch.bfloat16, torch.float32
mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))

def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(bf16)

def sharded(tensor, *spec):
    moved = tensor.to("xla")
    xs.mark_sharding(moved, mesh, spec)
    return moved

def collectives():
    """What the partitioned and optimised graph of the gradients sends from device to device, and rounds."""
    [path] = [p for p in glob.glob(dump + "/*SyncTensorsGraph*after_optimizations.txt")]
    text = open(path).read()
    found = re.findall(r"= (\w+)\S* (all-reduce|reduce-scatter|collective-permute|all-to-all)\(", text)
    return {"sent": sorted(set(found)), "rounded": len(re.findall(r"= bf16\S* convert\(", text))}

def measure(name, module, x, g, reference):
    leaves = list(module.parameters())
    for leaf in leaves:
        leaf.grad_dtype = f32
    torch_xla.sync()
    for path in glob.glob(dump + "/*"):
        os.unlink(path)
    module(x).backward(g)
    torch_xla.sync()
    seen = collectives()
    errors = [((p.grad.cpu().double() - r).norm() / r.norm()).item() for p, r in zip(leaves, reference)]
    print(json.dumps({"case": name, "dtypes": [str(p.grad.dtype) for p in leaves], "error": max(errors), **seen}))

def linear(batch, patched, weight_spec, x_spec=("data", None, None), g_spec=("data", None, None)):
    module = torch.nn.Sequential(torch.nn.Linear(16, 8, dtype=bf16)).to("xla")
    if patched:
        module = apply_xla_patch_to_nn_linear(module)
    xs.mark_sharding(module[0].weight, mesh, weight_spec)
    x, g = numbers(batch, 6, 16), numbers(batch, 6, 8, seed=1)
    reference = [torch.einsum("bsm,bsn->mn", g.double(), x.double()), g.double().sum((0, 1))]
    name = f"{'patched ' if patched else ''}linear, weight {weight_spec}, input {x_spec}"
    measure(name, module, sharded(x, *x_spec), sharded(g, *g_spec), reference)

batch = 8
for patched in (False, True):
    for spec in (("model", None), (None, "model"), ("data", "model"), (None, None)):
        linear(batch, patched, spec)
        batch += 4  # else the graph of the case before is taken, and nothing dumped
# Without the patch the activations, flattened to two dimensions, would be gathered first.
linear(batch, True, ("model", None), ("data", "model", None), ("data", "model", None))

module = torch.nn.Conv2d(4, 8, 3, dtype=bf16, bias=False).to("xla")
x, g = numbers(8, 4, 6, 6), numbers(8, 8, 4, 4, seed=1)
weight = module.weight.detach().cpu().double().requires_grad_()
torch.nn.functional.conv2d(x.double(), weight).backward(g.double())
spec = ("data", None, None, None)
measure("convolution", module, sharded(x, *spec), sharded(g, *spec), [weight.grad])

module = torch.nn.Embedding(10, 8, dtype=bf16).to("xla")
xs.mark_sharding(module.weight, mesh, (None, "model"))
ids, g = torch.arange(24).remainder(7).view(8, 3), numbers(8, 3, 8, seed=1)
reference = torch.zeros(10, 8, dtype=torch.float64).index_add_(0, ids.flatten(), g.double().flatten(0, 1))
measure("embedding", module, sharded(ids, "data", None), sharded(g, "data", None, None), [reference])

fsdp = xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model"))
def mark(output, mesh):
    xs.mark_sharding(output, mesh, ("fsdp", None, None))
module = SpmdFullyShardedDataParallel(
    torch.nn.Linear(16, 8, dtype=bf16).to("xla"), mesh=fsdp, shard_output=mark
)
x, g = numbers(64, 6, 16), numbers(64, 6, 8, seed=1)
reference = [torch.einsum("bsm,bsn->mn", g.double(), x.double()), g.double().sum((0, 1))]
mesh = fsdp
measure("SPMD FSDP", module, sharded(x, "fsdp", None, None), sharded(g, "fsdp", None, None), reference)
'''

SPMD_CASES = 12


@pytest.fixture(scope="module")
def spmd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spmd")
    return run(SPMD, folder, CPU_NUM_DEVICES="4", DUMP=str(folder / "dump"))


@fails_on_stock
def test_spmd_gradients_are_float32(spmd):
    assert len(spmd) == SPMD_CASES
    for case in spmd:
        assert set(case["dtypes"]) == {"torch.float32"}, case
        assert case["error"] <= 1e-6, case


@fails_on_stock
def test_spmd_devices_exchange_float32_and_nothing_is_rounded(spmd):
    """Where the contraction is sharded, the sum over devices is one of float32."""
    for case in spmd:
        assert case["sent"] and {dtype for dtype, _ in case["sent"]} <= {"f32"}, case
        assert case["rounded"] == 0, case


# ---- XlaFullyShardedDataParallel, whose parameters are float32


def two_layers():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.LayerNorm(8))


def fully_sharded(module, **options):
    return XlaFullyShardedDataParallel(
        module, compute_dtype=bf16, optimization_barrier_in_backward=False, **{"flatten_parameters": False, **options}
    )


def wide_fully_sharded(*args, **options):
    from torch_xla.amp import wide_grads

    module = fully_sharded(*args, **options)
    return module, wide_grads(module)


def products(text):
    return re.findall(r"= (.* (?:aten::mm|aten::addmm|xla::dot_general))\(", text)


FLAT = pytest.mark.parametrize("flat", [False, True], ids=["each", "flat"])


@fails_on_stock
@FLAT
@pytest.mark.parametrize("patched", [False, True], ids=["linear", "patched linear"])
def test_fsdp_rounds_no_gradient(flat, patched):
    """From the dot to the reduce-scatter all is float32. Stock has a bfloat16 dot, cast when it is done."""
    module, _ = wide_fully_sharded(
        torch.nn.Linear(16, 8, bias=False), flatten_parameters=flat, _use_xla_patched_linear=patched
    )
    x, g = random(32, 16).to(DEVICE), random(32, 8, seed=1).to(DEVICE)
    torch_xla.sync()
    module(x).backward(g)
    (shard,) = module.parameters()
    text = ir(shard.grad)
    assert " = f32[" in next(line for line in text.splitlines() if "dot_general" in line)
    assert " = (f32[" in next(line for line in text.splitlines() if "reduce_scatter" in line)
    assert "xla::cast" not in text and "bf16" not in text.split("dot_general")[1]
    assert shard.grad.dtype == f32


@fails_on_stock
@FLAT
@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "no_sync"])
def test_fsdp_micro_batches(flat, checkpointed, sync):
    """64 of them. Under no_sync() they add up in the full gradient, else in the shard's."""
    linear, weight = torch.nn.Linear(64, 32, bias=False), random(32, 64)
    with torch.no_grad():
        linear.weight.copy_(weight.float())
    inner = checkpoint_module(linear) if checkpointed else linear
    module, names = wide_fully_sharded(inner, flatten_parameters=flat)
    assert names == [name for name, _ in module.named_parameters()]
    exact = torch.zeros(32, 64, dtype=f64)
    for step in range(64):
        x, g = random(16, 64, seed=step), random(16, 32, seed=1000 + step)
        if sync or step == 63:
            module(x.to(DEVICE).requires_grad_()).backward(g.to(DEVICE))
        else:
            with module.no_sync():
                module(x.to(DEVICE).requires_grad_()).backward(g.to(DEVICE))
        torch_xla.sync()
        exact += g.double().t() @ x.double()
    (shard,) = module.parameters()
    found = shard.grad.cpu().double()[: exact.numel()].view_as(exact)
    assert ((found - exact).norm() / exact.norm()).item() <= 1e-6


@fails_on_stock
@FLAT
def test_fsdp_within_fsdp_trains_as_it_did(flat):
    """Losses and weights of a few steps, against the same with stock's gradients: no more than rounding apart."""
    from torch_xla.amp import wide_grads

    ends = []
    for wide in (False, True):
        inner = two_layers()
        inner[0] = fully_sharded(inner[0], flatten_parameters=flat)
        module = fully_sharded(torch.nn.Sequential(inner, torch.nn.Linear(8, 4)), flatten_parameters=flat)
        if wide:
            assert len(wide_grads(module)) == len(list(module.parameters()))
            assert wide_grads(module) == []
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        for step in range(4):
            optimizer.zero_grad()
            module(random(32, 16, seed=step).to(DEVICE)).float().square().mean().backward()
            assert {p.grad.dtype for p in module.parameters()} == {f32}
            optimizer.step()
            torch_xla.sync()
        ends.append([p.detach().cpu() for p in module.parameters()])
    for stock, wide in zip(*ends, strict=True):
        torch.testing.assert_close(wide, stock, rtol=0, atol=5e-3)


@fails_on_stock
@FLAT
def test_fsdp_taken_back(flat):
    """Full parameters say float32 again, and gradients are made as they were: biases' summed, then cast."""
    from torch_xla.amp import wide_grads

    texts = []
    for wide in (False, True):
        module = fully_sharded(two_layers(), flatten_parameters=flat)
        if wide:
            names = [name for name, _ in module.named_parameters()]
            assert wide_grads(module) == names
            assert wide_grads(module, enabled=False) == names
            assert wide_grads(module, enabled=False) == []
        x = random(32, 16).to(DEVICE)
        torch_xla.sync()
        module(x).sum().backward()
        assert {p.dtype for p in module.full_params} == {f32}
        texts.append(ir(*(p.grad for p in module.parameters())))
    assert texts[0] == texts[1]


@fails_on_stock
def test_fsdp_between_forward_and_backward_of_an_evaluation():
    """The full parameters that a forward pass left gathered are gathered again."""
    from torch_xla.amp import wide_grads

    module, x = fully_sharded(two_layers()), random(32, 16).to(DEVICE)
    with torch.no_grad():
        before = module(x)
        assert module.has_full_params
        wide_grads(module)
        assert not module.has_full_params
        # Parameters that say float32 had LayerNorm computed in float32, and rounded once.
        torch.testing.assert_close(module(x).cpu(), before.cpu(), rtol=0, atol=0.02)


@fails_on_stock
def test_fsdp_in_float32_has_nothing_to_do():
    from torch_xla.amp import wide_grads

    module = XlaFullyShardedDataParallel(two_layers(), flatten_parameters=False)
    assert wide_grads(module) == []


@fails_on_stock
def test_fsdp_gradients_of_another_dtype_are_refused():
    from torch_xla.amp import wide_grads

    module = fully_sharded(two_layers())
    with module.no_sync():
        module(random(32, 16).to(DEVICE)).sum().backward()
    with pytest.raises(RuntimeError, match=r"gradients of dtype torch.float64, found .*0.weight \(torch.float32\)"):
        wide_grads(module, dtype=f64)
    assert {p.dtype for p in module.full_params} == {f32}


@passes_on_stock
@FLAT
def test_fsdp_without_wide_grads_is_stocks(flat):
    module, x = fully_sharded(torch.nn.Linear(16, 8, bias=False), flatten_parameters=flat), random(32, 16).to(DEVICE)
    torch_xla.sync()
    module(x).sum().backward()
    text = ir(*(p.grad for p in module.parameters()))
    assert products(text) == ["bf16[8,16] aten::mm"] and "xla::cast" in text
