"""Reductions and composed operators of bfloat16 and float16: patches/torch_xla/wide-reductions."""

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from expecttest import assert_expected_inline
from ir_text import ir

DEVICE = torch_xla.device()
bf16, f16, f32, f64 = torch.bfloat16, torch.float16, torch.float32, torch.float64

fails_on_stock = pytest.mark.fails_on_stock
passes_on_stock = pytest.mark.passes_on_stock


def data(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2


X = data(64, 512)
TARGET = torch.randint(0, 512, (64,), generator=torch.Generator().manual_seed(1))
IMAGE = data(2, 8, 32, 32)
INDEX = torch.arange(64) % 3


def other(x):
    return x.flip(0)


REDUCTIONS = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "cumsum": lambda x: x.cumsum(1),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "softmax": lambda x: x.softmax(1),
    "dist": lambda x: torch.dist(x, other(x)),
    "trapezoid": torch.trapezoid,
    "index_add": lambda x: x.index_add(0, INDEX.to(x.device), x),
}
LOSSES = {
    "mse": lambda x: F.mse_loss(x, other(x)),
    "l1": lambda x: F.l1_loss(x, other(x)),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, other(x)),
    "kl_div": lambda x: F.kl_div(x.log_softmax(1), other(x).softmax(1), reduction="batchmean"),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), other(x).sigmoid()),
    "bce of logits": lambda x: F.binary_cross_entropy_with_logits(x, other(x).sigmoid()),
    "cosine_similarity": lambda x: F.cosine_similarity(x, other(x)),
}
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu of tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "selu": F.selu,
    "lerp": lambda x: torch.lerp(x, other(x), 0.3),
    "addcdiv": lambda x: torch.addcdiv(x, other(x), x.flip(1), value=0.3),
}
POOLS = {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 5),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 4),
}
GRADIENTS = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "cross_entropy": lambda x: F.cross_entropy(x, TARGET.to(x.device)),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "norm": lambda x: x.norm(),
}
ALL = {**REDUCTIONS, **LOSSES, **ACTIVATIONS, **POOLS}


def error(function, x, dtype, device, grad):
    """Mean error against float64 relative to the mean magnitude."""

    def run(t):
        t = t.requires_grad_(grad)
        out = function(t)
        return torch.autograd.grad(out.sum() if out.dim() else out, t)[0] if grad else out

    narrow = x.to(dtype)
    exact = run(narrow.double()).detach()
    found = run(narrow.to(device)).detach()
    assert found.dtype == dtype
    return float((found.cpu().double() - exact).abs().sum() / exact.abs().sum())


@fails_on_stock
@pytest.mark.parametrize("name", ALL)
def test_accuracy(name):
    x = IMAGE if name in POOLS else X
    assert error(ALL[name], x, bf16, DEVICE, False) <= 1.5 * error(ALL[name], x, bf16, "cpu", False) + 2e-4


@fails_on_stock
@pytest.mark.parametrize("name", GRADIENTS)
def test_accuracy_of_gradients(name):
    def weighted(x):
        out = GRADIENTS[name](x)
        return out * torch.linspace(0.25, 1.25, out.shape[-1], dtype=out.dtype, device=x.device) if out.dim() else out

    found, expected = (error(weighted, X, bf16, device, True) for device in (DEVICE, "cpu"))
    assert found <= 1.25 * expected + 2e-4


@passes_on_stock
@pytest.mark.parametrize("name", ALL)
def test_accuracy_in_float16(name):
    x = (IMAGE if name in POOLS else X) / 4
    assert error(ALL[name], x, f16, DEVICE, False) < 0.5


# ---- the graph


@fails_on_stock
def test_mean_with_a_dtype_converts_first():
    x = X.to(bf16).to(DEVICE)
    assert_expected_inline(
        ir(x.mean(1, dtype=f32)),
        """\
%0 = bf16[64,512] xla::device_data()
%1 = f32[64,512] xla::cast(%0)
%2 = f32[64] aten::mean(%1)
return %2
""",
    )
    assert torch.equal(x.mean(dtype=f32).cpu(), x.float().mean().cpu())


@fails_on_stock
def test_one_cast_each_way():
    x = X.to(bf16).to(DEVICE)
    assert_expected_inline(
        ir(x.softmax(1)),
        """\
%0 = bf16[64,512] xla::device_data()
%1 = f32[64,512] xla::cast(%0)
%2 = f32[64,512] aten::softmax(%1)
%3 = bf16[64,512] xla::cast(%2)
return %3
""",
    )


@passes_on_stock
def test_other_dtypes_are_as_in_stock():
    x, i = X.to(DEVICE), TARGET.to(DEVICE)
    assert_expected_inline(
        ir(x.sum(1), x.mean(), x.cumsum(0), x.softmax(1), x.norm(), F.gelu(x), i.sum(), x.sum(dtype=f32)),
        """\
%0 = f32[64,512] xla::device_data()
%1 = f32[64] aten::sum(%0)
%2 = f32[] aten::mean(%0)
%3 = f32[64,512] aten::cumsum(%0)
%4 = f32[64,512] aten::softmax(%0)
%5 = f32[64,512] aten::mul(%0, %0)
%6 = f32[] aten::sum(%5)
%7 = f32[] aten::sqrt(%6)
%8 = f32[64,512] aten::gelu(%0)
%9 = s64[64] xla::device_data()
%10 = s64[] aten::sum(%9)
%11 = f32[] aten::sum(%0)
return %1, %2, %3, %4, %7, %8, %10, %11
""",
    )


@passes_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16, f32, f64, torch.int64), ids=str)
@pytest.mark.parametrize("name", ("sum", "mean", "prod", "cumsum", "softmax", "log_softmax"))
def test_dtype_argument_gives_that_dtype(name, dtype):
    if not dtype.is_floating_point and name not in ("sum", "prod", "cumsum"):
        pytest.skip("torch refuses it")
    narrow = torch.tensor([[1.5, 2.0, 0.5]]).to(bf16)
    arguments = () if name in ("sum", "mean", "prod") else (1,)
    found = getattr(narrow.to(DEVICE), name)(*arguments, dtype=dtype)
    expected = getattr(narrow, name)(*arguments, dtype=dtype)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)


@fails_on_stock
def test_a_long_sum_of_ones():
    x = torch.ones(4096, dtype=bf16, device=DEVICE)
    assert x.sum().item() == 4096
    assert x.cumsum(0)[-1].item() == 4096
    assert x.float().sum(dtype=bf16).item() == 4096
