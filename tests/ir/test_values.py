"""Operators whose values torch_xla gets wrong, or whose arguments it refuses: patches/torch_xla/values."""

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from expecttest import assert_expected_inline
from ir_text import ir

DEVICE = torch_xla.device()
bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
INF = float("inf")

fails_on_stock = pytest.mark.fails_on_stock
passes_on_stock = pytest.mark.passes_on_stock
ends_the_process_on_stock = pytest.mark.ends_the_process_on_stock


def data(*shape, dtype=f32, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2
    return x.to(dtype)


def assert_same(function, *cpu, **tolerance):
    """Result and dtype of a function are those of torch's CPU kernels."""
    expected = function(*cpu)
    found = function(*(t.to(DEVICE) for t in cpu))
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True, **tolerance)


def gradient(function, x, device):
    leaf = x.to(device).requires_grad_()
    out = function(leaf)
    weight = torch.linspace(0.25, 1.25, out.numel()).view(out.shape).to(out.dtype).to(device)
    (grad,) = torch.autograd.grad(out, leaf, weight)
    return grad.cpu()


def assert_same_gradient(function, x, **tolerance):
    torch.testing.assert_close(gradient(function, x, DEVICE), gradient(function, x, "cpu"), **tolerance)


# ---- gradients of exponential units


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, f16), ids=str)
@pytest.mark.parametrize("name", ("elu", "celu", "selu"))
def test_gradient_of_an_exponential_unit(name, dtype):
    assert_same_gradient(getattr(F, name), data(4, 8, dtype=dtype))


@fails_on_stock
def test_gradient_of_elu_with_another_alpha():
    assert_same_gradient(lambda x: F.elu(x, 0.3), data(4, 8))
    assert_same_gradient(lambda x: F.celu(x, 0.3), data(4, 8))


def test_gradient_of_elu_in_place():
    assert_same_gradient(lambda x: F.elu(x * 1, inplace=True), data(4, 8))


@fails_on_stock
def test_ir_of_the_gradient_of_elu():
    x = data(2, 3).to(DEVICE).requires_grad_()
    torch_xla.sync()
    (grad,) = torch.autograd.grad(F.elu(x).sum(), x)
    assert_expected_inline(ir(grad), "")


# ---- norms


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, f16), ids=str)
@pytest.mark.parametrize("p", (INF, -INF), ids=str)
def test_norms_of_infinite_order(p, dtype):
    x = data(4, 8, dtype=dtype)
    for function in (
        lambda x: x.norm(p),
        lambda x: x.norm(p, 1),
        lambda x: torch.linalg.vector_norm(x, p, dim=(0, 1), keepdim=True),
        lambda x: torch.linalg.vector_norm(x, p, dim=0, dtype=f32),
    ):
        assert_same(function, x)
        assert_same_gradient(function, x)


@passes_on_stock
@pytest.mark.parametrize("p", (0, 1, 2, 3), ids=str)
def test_norms_of_finite_order(p):
    assert_same(lambda x: x.norm(p, 1), data(4, 8))


# ---- the rest of the values


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16, torch.int64, torch.bool), ids=str)
def test_chunk_cat(dtype):
    parts = [data(*shape).mul(4).to(dtype) for shape in ((3, 4), (4, 2), (5, 3))]
    assert_same(lambda *t: torch._chunk_cat(t, 0, 2), *parts)
    assert_same(lambda *t: torch._chunk_cat([t[0], t[0]], -1, 3), *parts)
    assert_same(lambda *t: torch._chunk_cat(t, 0, 2, out=torch.empty(2, 17, dtype=dtype, device=t[0].device)), *parts)


def test_chunk_cat_refuses():
    with pytest.raises(RuntimeError, match="one dtype"):
        torch._chunk_cat([data(2).to(DEVICE), data(2, dtype=bf16).to(DEVICE)], 0, 2)
    with pytest.raises(RuntimeError, match="at least 1"):
        torch._chunk_cat([data(2).to(DEVICE)], 0, 0)


@fails_on_stock
@pytest.mark.parametrize("dim", (0, 1))
def test_cummax_gives_the_last_of_equal_elements(dim):
    x = torch.tensor([[1, 1, 3, 2, 3], [0, 1, 1, 5, 1]])
    assert_same(lambda x: x.cummax(dim).indices, x)
    assert_same(lambda x: x.cummax(dim).indices, x.float().where(x != 3, float("nan")))


@fails_on_stock
def test_averages_of_integers():
    x = data(2, 3, 8, 8).mul(9).long()
    assert_same(lambda x: F.avg_pool2d(x, 3), x)
    assert_same(lambda x: F.avg_pool3d(x, 3), x)


@fails_on_stock
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32), ids=str)
def test_backward_of_dropout_of_integers(dtype):
    mask = data(4, 8) > 0
    assert_same(lambda x, m: torch.ops.aten.native_dropout_backward(x, m, 1.25), data(4, 8).mul(9).to(dtype), mask)


# ---- interpolation

IMAGE = data(2, 3, 5, 7)


@fails_on_stock
@pytest.mark.parametrize("factor", (1.3, 0.7, (2.0, 1.7)), ids=str)
@pytest.mark.parametrize("dtype", (f32, bf16), ids=str)
@pytest.mark.parametrize("mode", ("nearest", "bilinear"))
def test_interpolation_by_a_scale(mode, dtype, factor):
    def function(x):
        return F.interpolate(x, scale_factor=factor, mode=mode)

    assert_same(function, IMAGE.to(dtype))
    assert_same_gradient(function, IMAGE.to(dtype))


@passes_on_stock
@pytest.mark.parametrize("keywords", ({"size": (9, 4)}, {"scale_factor": 2}), ids=str)
@pytest.mark.parametrize("mode", ("nearest", "bilinear"))
def test_interpolation_by_sizes(mode, keywords):
    assert_same(lambda x: F.interpolate(x, mode=mode, **keywords), IMAGE)


def test_interpolation_with_aligned_corners():
    for keywords in ({"size": (9, 4)}, {"scale_factor": 1.3}):
        assert_same(lambda x, k=keywords: F.interpolate(x, mode="bilinear", align_corners=True, **k), IMAGE)


@passes_on_stock
def test_ir_of_interpolation_by_sizes_is_stocks():
    x = IMAGE.to(DEVICE)
    assert_expected_inline(
        ir(*(F.interpolate(x, size=(9, 4), mode=mode) for mode in ("nearest", "bilinear")), F.interpolate(x, scale_factor=2)),
        "",
    )


# ---- empty tensors


@ends_the_process_on_stock
def test_roll_of_an_empty_tensor():
    assert_same(lambda x: x.roll(1, 0), data(0, 4))
    assert_same(lambda x: x.roll((1, 2), (0, 1)), data(4, 0))


@ends_the_process_on_stock
@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
def test_nll_loss_of_an_empty_batch(reduction):
    target = torch.zeros(0, dtype=torch.int64)
    assert_same(lambda x: F.nll_loss(x, target.to(x.device), reduction=reduction), data(0, 4))
    assert_same_gradient(lambda x: F.nll_loss(x, target.to(x.device), reduction=reduction), data(0, 4))


# ---- arguments that stock refuses


@fails_on_stock
@pytest.mark.parametrize("name", ("clamp_min", "clamp_max"))
def test_clamp_by_a_tensor_of_more_dimensions(name):
    for shapes in (((3,), (2, 3)), ((1, 3), (2, 1)), ((), (4,))):
        assert_same(getattr(torch, name), data(*shapes[0]), data(*shapes[1], seed=1))


@fails_on_stock
@pytest.mark.parametrize("padding", ((-1, 2), (2, -1), (-1, -1)), ids=str)
def test_replication_padding_by_negative_numbers(padding):
    assert_same(lambda x: F.pad(x, padding, mode="replicate"), data(2, 3, 5))
    assert_same_gradient(lambda x: F.pad(x, padding, mode="replicate"), data(2, 3, 5))
    assert_same_gradient(lambda x: F.pad(x, (*padding, 1, -1), mode="replicate"), data(2, 3, 5, 6))
    assert_same(lambda x: F.pad(x, padding, mode="replicate"), data(2, 3, 5).long())


@fails_on_stock
@pytest.mark.parametrize("name", ("erfc", "erfinv"))
def test_error_functions_of_integers(name):
    assert_same(getattr(torch, name), torch.tensor([-1, 0, 1]))


@fails_on_stock
def test_sections_in_a_tensor():
    for sections in (torch.tensor([1, 3]), torch.tensor(2)):
        assert_same(lambda x, s: torch.cat(torch.tensor_split(x, s)[1:]), data(4, 3), sections)


# ---- computed in float32 and rounded once

X = data(64, 128)


def error(function, x, dtype, device, grad):
    """Mean error against float64 relative to the mean magnitude."""
    narrow = x.to(dtype)

    def run(x, device):
        return gradient(function, x, device) if grad else function(x.to(device)).cpu()

    exact = run(narrow.double(), "cpu")
    found = run(narrow, device)
    assert found.dtype == dtype
    return float((found.double() - exact).abs().sum() / exact.abs().sum())


def is_as_exact_as_the_cpu(function, dtype, x=X, grad=False):
    found, expected = (error(function, x, dtype, device, grad) for device in (DEVICE, "cpu"))
    return found <= 1.5 * expected + torch.finfo(dtype).eps / 40


STEPS = {
    "lerp": lambda x: x.lerp(x.flip(0), 0.3),
    "lerp by a tensor": lambda x: x.lerp(x.flip(0), x.flip(1)),
    "floor": lambda x: torch.div(x * 8, x.flip(0), rounding_mode="floor"),
    "floor_divide": lambda x: torch.floor_divide(x * 8, x.flip(0)),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
}
OF_FLOAT16 = {
    "addcmul": lambda x: x.addcmul(x.flip(0), x.flip(1), value=0.3),
    "log_softmax": lambda x: x.log_softmax(1),
    "sum": lambda x: x.sum(1),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "layer_norm": lambda x: F.layer_norm(x, (128,)),
    "group_norm": lambda x: F.group_norm(x, 8),
    "conv": lambda x: F.conv1d(x.view(8, 8, 128), x[:24].view(8, 8, 48)[..., :5]),
}
GRADIENTS = {"hardswish": F.hardswish, "logsigmoid": F.logsigmoid}


@fails_on_stock
@pytest.mark.parametrize("name", STEPS)
def test_steps_of_bfloat16(name):
    assert is_as_exact_as_the_cpu(STEPS[name], bf16)


@pytest.mark.parametrize("name", {**STEPS, **OF_FLOAT16})
def test_steps_of_float16(name):
    assert is_as_exact_as_the_cpu({**STEPS, **OF_FLOAT16}[name], f16)


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_half_dtypes(name, dtype):
    assert is_as_exact_as_the_cpu(GRADIENTS[name], dtype, grad=True)


def test_running_statistics_of_float16():
    layer = torch.nn.BatchNorm1d(128).half()
    results = []
    for device in (DEVICE, "cpu"):
        layer.reset_running_stats()
        on = layer.to(device)
        on(X.half().to(device))
        results.append((on.running_mean.cpu(), on.running_var.cpu()))
    torch.testing.assert_close(*results)


# ---- what is as in stock


@passes_on_stock
def test_the_rest_is_as_in_stock():
    x, h = data(2, 3).to(DEVICE), data(2, 3, dtype=bf16).to(DEVICE)
    assert_expected_inline(
        ir(x.norm(3), x.clamp_min(x), x.lerp(x, 0.5), F.layer_norm(h, (3,)), h.sum(1), h.addcmul(h, h), x.roll(1, 0)),
        "",
    )


@fails_on_stock
def test_compiled():
    def program(x):
        return x.norm(INF), F.interpolate(x[None, None], scale_factor=1.3), x.bfloat16().lerp(x.flip(0).bfloat16(), 0.3)

    x = data(4, 6)
    found = torch.compile(program, backend="openxla")(x.to(DEVICE))
    for f, e in zip(found, program(x), strict=True):
        torch.testing.assert_close(f.cpu(), e)
