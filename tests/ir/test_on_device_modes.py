"""on-device under torch.compile, SPMD, autocast and torch.func: patches/torch_xla/on-device."""

from pathlib import Path

import pytest
import torch
from lowered import on_the_cpu, on_the_device, with_gradient
from marks import fails_on_stock
from other_process import forked
from tensors import DEVICE
from test_on_device import PROGRAMS, X

#: Their forward pass leaves the device on stock wheels.
SOME = ["grid_sample", "huber_loss", "lgamma", "igamma", "median", "logcumsumexp", "adaptive_avg_pool2d"]

SOME_SHARDED = ["bilinear", "dilated max_pool2d", "grid_sample", "lgamma", "logcumsumexp", "median", "unfold", "glu"]
MATRICES = ["cholesky_ex", "cholesky_solve", "det", "lu", "lu_factor_ex", "slogdet", "solve_ex", "solve_triangular"]
MATRICES += ["qr", "qr, complete", "householder_product", "lstsq", "lstsq, wide", "lstsq of any rank"]


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
    torch.testing.assert_close(on_the_cpu(found), list(run_on(X)), rtol=1e-4, atol=1e-5)


@fails_on_stock
@pytest.mark.parametrize("name", ["bicubic, antialiased", "grid_sample", "cdist", "logcumsumexp"])
def test_autocast_does_not_act_within_an_operator(name):
    expected = on_the_cpu(with_gradient(PROGRAMS[name], X.to(DEVICE)))
    with torch.autocast("xla", dtype=torch.bfloat16):
        found = on_the_device(lambda: with_gradient(PROGRAMS[name], X.to(DEVICE)))
    assert all(map(torch.equal, on_the_cpu(found), expected))


SPMD = """
import importlib, sys
from pathlib import Path
sys.path.append(sys.argv[5])  # castoff's
from castoff.audit import partitions
partitions.dump_to(Path(sys.argv[1]))
import numpy, torch, torch_xla, torch_xla.distributed.spmd as xs
from torch_xla.debug import metrics
torch_xla.runtime.use_spmd()
programs, sizes = getattr(importlib.import_module(sys.argv[2]), sys.argv[3]), eval(sys.argv[4])
mesh = xs.Mesh(numpy.arange(4), (4,), ("data",))
shard = "f32[" + ",".join(map(str, (sizes[0] // 4, *sizes[1:]))) + "]"
for name in sys.argv[6:]:
    x = torch.rand(sizes).to("xla")
    xs.mark_sharding(x, mesh, ("data", *[None] * (len(sizes) - 1)))
    x.requires_grad_()
    torch_xla.sync()
    y = programs[name](x)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    text = partitions.partitioned([y.detach(), grad])
    assert shard in text and "all-gather(" not in text and "all-reduce(" not in text, (name, text)
    torch_xla.sync()
assert metrics.executed_fallback_ops() == []
"""

#: Of tensors, some of which have a batch, and are transformed along others of their dimensions.
TRANSFORMS = {
    "rfft": lambda x: torch.fft.rfft(x).abs(),
    "irfft": lambda x: torch.fft.irfft(torch.complex(x, x), 11),
    "fft2": lambda x: torch.fft.fft2(x).real,
    "fft of a prime length": lambda x: torch.fft.fft(torch.nn.functional.pad(x, (0, 125))).real,
    "fft of another dimension": lambda x: torch.fft.ifft(torch.complex(x, x), dim=1).imag,
}

SHARDED = {
    "images": ("test_on_device", "PROGRAMS", (8, 4, 5, 7), SOME_SHARDED),
    "matrices": ("test_linalg_on_device", "PROGRAMS", (8, 5, 5), MATRICES),
    "transforms": ("test_on_device_modes", "TRANSFORMS", (8, 4, 6), TRANSFORMS),
}


#: QR is a loop under SPMD.
FACTORS = """
import torch, torch_xla
torch_xla.runtime.use_spmd()
numbers = torch.Generator().manual_seed(0)
for sizes in ((5, 3), (3, 5), (2, 3, 4, 4), (1, 4)):
    x = torch.randn(*sizes, generator=numbers)
    for f in (torch.linalg.qr, lambda x: torch.linalg.qr(x, mode="complete"), torch.geqrf):
        for found, expected in zip(f(x.to("xla")), f(x), strict=True):
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
"""


def test_factors_of_sharded_matrices_have_their_values():
    forked("-c", FACTORS, CPU_NUM_DEVICES="4")


#: What raises for a matrix without an answer asks, across the devices, whether there is one.
SOLVED = """
import numpy, torch, torch_xla, torch_xla.distributed.spmd as xs
torch_xla.runtime.use_spmd()
mesh = xs.Mesh(numpy.arange(4), (4,), ("data",))
numbers = torch.Generator().manual_seed(0)
a = torch.randn(8, 4, 4, generator=numbers)
b = a @ a.mT + torch.eye(4)
on = b.to("xla")
xs.mark_sharding(on, mesh, ("data", None, None))
for f in (torch.linalg.inv, torch.linalg.cholesky, lambda x: torch.linalg.solve(x, x.flip(0))):
    torch.testing.assert_close(f(on).cpu(), f(b), rtol=1e-3, atol=1e-3)
b[5] = -b[5]
on = b.to("xla")
xs.mark_sharding(on, mesh, ("data", None, None))
try:
    torch.linalg.cholesky(on)
except torch.linalg.LinAlgError as error:
    assert "(Batch element 5)" in str(error), error
else:
    raise AssertionError("a matrix that is not positive-definite has a factor")
"""


def test_errors_of_sharded_matrices():
    forked("-c", SOLVED, CPU_NUM_DEVICES="4")


#: Features of images put into the embeddings of a batch that is sharded.
MASKED = """
import numpy, torch, torch_xla, torch_xla.distributed.spmd as xs
torch_xla.runtime.use_spmd()
mesh = xs.Mesh(numpy.arange(4), (4,), ("data",))
numbers = torch.Generator().manual_seed(0)
x, features = torch.randn(8, 3, 4, generator=numbers), torch.randn(40, 4, generator=numbers)
at = torch.rand(8, 3, 1, generator=numbers) < 0.5
found = []
for device in ("cpu", "xla"):
    on = [t.detach().to(device) for t in (x, at, features)]
    if device == "xla":
        xs.mark_sharding(on[0], mesh, ("data", None, None))
    leaves = on[0].requires_grad_(), on[2].requires_grad_()
    out = leaves[0].masked_scatter(on[1], leaves[1])
    found.append([t.cpu() for t in (out, *torch.autograd.grad(out.square().sum(), leaves))])
assert all(map(torch.equal, *found))
"""


@fails_on_stock
def test_masked_scatter_into_sharded_tensors():
    forked("-c", MASKED, CPU_NUM_DEVICES="4")


LATER = {"transforms": pytest.mark.since("2.7", "a Fourier transform as products, which 2.6 gathers")}


@fails_on_stock
@pytest.mark.parametrize("name", [pytest.param(name, marks=LATER.get(name, ())) for name in SHARDED])
def test_sharded_tensors_are_not_gathered(tmp_path, name):
    module, programs, sizes, names = SHARDED[name]
    root = Path(__file__).resolve().parents[2]
    forked("-c", SPMD, tmp_path, module, programs, repr(sizes), root, *names, CPU_NUM_DEVICES="4")


#: Of one number, of a length that is a product, and of two with a factor too large for one.
LENGTHS = """
import torch, torch_xla
torch_xla.runtime.use_spmd()
numbers = torch.Generator().manual_seed(0)
for length in (1, 12, 131, 291):
    x = torch.complex(*torch.randn(2, 3, length, generator=numbers))
    for f in (torch.fft.fft, torch.fft.ifft, torch.fft.irfft, lambda x: torch.fft.rfft(x.real), torch.fft.fft2):
        if f is torch.fft.irfft and length == 1:
            continue
        expected = f(x)
        atol = 1e-6 * expected.abs().max().item()
        torch.testing.assert_close(f(x.to("xla")).cpu(), expected, atol=atol, rtol=0)
"""


def test_transforms_of_sharded_tensors_have_their_values():
    forked("-c", LENGTHS, CPU_NUM_DEVICES="4")
