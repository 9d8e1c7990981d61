"""Means, norms, softmax, pooling and losses of bfloat16 and float16: patches/torch_xla/wide-reductions."""

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f16, f32, f64


def data(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2


X = data(64, 512)
TARGET = torch.randint(0, 512, (64,), generator=torch.Generator().manual_seed(1))
IMAGE = data(2, 8, 32, 32)


def other(x):
    return x.flip(0)


FUNCTIONS = {
    "mean": lambda x: x.abs().mean(1),
    "mean of all": lambda x: x.abs().mean(),
    "std": lambda x: x.std(),
    "var of rows": lambda x: x.var(1),
    "norm": lambda x: x.norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "dist": lambda x: torch.dist(x, other(x)),
    "softmax": lambda x: x.softmax(1),
    "logsigmoid": lambda x: F.logsigmoid(x.abs()),
    "l1": lambda x: F.l1_loss(x, other(x)),
    "mse": lambda x: F.mse_loss(x, other(x)),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, other(x)),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), other(x).sigmoid()),
    "bce of logits": lambda x: F.binary_cross_entropy_with_logits(x, other(x).sigmoid()),
}
POOLS = {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 5),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 4),
}
ALL = {**FUNCTIONS, **POOLS}
GRADIENTS = {"softmax": lambda x: x.softmax(1), "softmax over rows": lambda x: x.softmax(0)}


def all_but_on_2_1(*lacking):
    """The names in ALL; torch 2.1 has no CPU kernel of these for the dtype."""
    since = pytest.mark.since("2.6", "this operator of that dtype on the CPU")
    return [pytest.param(name, marks=since) if name in lacking else name for name in ALL]


def error(function, x, dtype, device, grad=False):
    """Mean error against float64 relative to the mean magnitude."""

    def run(t):
        t = t.requires_grad_(grad)
        out = function(t)
        if grad:
            weight = torch.linspace(0.25, 1.25, out.shape[-1], dtype=out.dtype, device=x.device).to(out.device)
            out = torch.autograd.grad((out * weight).sum(), t)[0]
        return out

    narrow = x.to(dtype)
    exact = run(narrow.double()).detach()
    found = run(narrow.to(device)).detach()
    assert found.dtype == dtype
    return float((found.cpu().double() - exact).abs().sum() / exact.abs().sum())


def is_as_exact_as_the_cpu(function, x, dtype, grad=False):
    found, expected = (error(function, x, dtype, device, grad) for device in (DEVICE, "cpu"))
    return found <= 1.5 * expected + torch.finfo(dtype).eps / 40


def operand(name):
    return IMAGE if name in POOLS else X


@fails_on_stock
@pytest.mark.parametrize("name", all_but_on_2_1("mse", "bce"))
def test_error_in_bfloat16(name):
    assert is_as_exact_as_the_cpu(ALL[name], operand(name), bf16)


@pytest.mark.parametrize("name", all_but_on_2_1("softmax", "bce", "avg_pool2d", "adaptive_avg_pool2d"))
def test_error_in_float16(name):
    assert is_as_exact_as_the_cpu(ALL[name], operand(name) / 4, f16)


@fails_on_stock
@pytest.mark.parametrize("name", GRADIENTS)
def test_error_of_gradients(name):
    assert is_as_exact_as_the_cpu(GRADIENTS[name], operand(name), bf16, grad=True)


@fails_on_stock
def test_a_long_mean():
    a, b = (data(512, 512, seed=seed).to(bf16).to(DEVICE) for seed in (1, 2))
    exact = F.mse_loss(a.cpu().double(), b.cpu().double()).item()
    assert abs(F.mse_loss(a, b).item() - exact) < exact / 200
    assert abs((a - b).square().mean().item() - exact) < exact / 100


# ---- sums in a backward pass


def gradient_of_a_bias(dtype, rows=4096, device=DEVICE, computed_in=None):
    """That of a bias [8] which is added to [rows, 8]."""
    computed_in = computed_in or dtype
    x, weight = (data(rows, 8, seed=seed).to(dtype).to(device, computed_in) for seed in (0, 3))
    bias = torch.zeros(8, dtype=computed_in, device=device, requires_grad=True)
    return torch.autograd.grad(x + bias, bias, weight)[0]


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
def test_the_gradient_of_a_broadcast_operand_is_summed_in_float32(dtype):
    """Such as that of a UNet's last bias."""
    found, exact = gradient_of_a_bias(dtype), gradient_of_a_bias(dtype, device="cpu", computed_in=f64)
    assert found.dtype == dtype
    assert torch.equal(found.cpu(), exact.to(dtype))


@fails_on_stock
def test_ir_of_the_gradient_of_a_broadcast_operand():
    ir(gradient_of_a_bias(bf16)).expect("""\
%0 = bf16[4096,8] xla::device_data()
%1 = f32[4096,8] xla::cast(%0)
%2 = f32[1,8] aten::sum(%1)
%3 = bf16[1,8] xla::cast(%2)
%4 = bf16[8] aten::view(%3)
return %4
""")


@pytest.mark.default_pin  # 2.1 cannot trace for a TPU
@passes_on_stock
def test_sums_that_stay_as_they_are_written():
    """In a forward pass, of few elements, and for a TPU, whose compiler sums in float32 by itself, beside no loss."""
    try:
        from torch_xla._native_attention import trace_for_tpu
    except ImportError:  # stock

        def trace_for_tpu(enable):
            pass

    x = X.to(bf16).to(DEVICE)
    trace_for_tpu(True)
    try:
        text = ir(gradient_of_a_bias(bf16), x.sum(1))
    finally:
        trace_for_tpu(False)
    assert "f32" not in text + ir(gradient_of_a_bias(bf16, rows=255), x.sum(1), x.sum())


def gradient_of_the_bias_of_a_convolution(device, dtype=bf16, trained="both"):
    x, weight, of_output = (
        data(*shape, seed=seed).to(bf16).to(device, dtype)
        for seed, shape in enumerate([(2, 4, 16, 16), (8, 4, 3, 3), (2, 8, 14, 14)])
    )
    weight.requires_grad_(trained == "both")
    bias = torch.zeros(8, dtype=dtype, device=device, requires_grad=True)
    F.conv2d(x, weight, bias).backward(of_output)
    return bias.grad


@fails_on_stock
@pytest.mark.parametrize("trained", ["both", "the bias alone"])
def test_the_gradient_of_the_bias_of_a_convolution(trained):
    """Such as those of ConvNeXt's layers between stages."""
    found = gradient_of_the_bias_of_a_convolution(DEVICE, trained=trained)
    assert torch.equal(found.cpu(), gradient_of_the_bias_of_a_convolution("cpu", f64).to(bf16))


def gradients_of_biases(loss, target):
    """Of two linears, the second of which the loss reads."""
    x, *weights = (data(*shape, seed=seed).to(bf16).to(DEVICE) for seed, shape in enumerate([(512, 8)] + [(8, 8)] * 2))
    biases = [torch.zeros(8, dtype=bf16, device=DEVICE, requires_grad=True) for _ in weights]
    for weight, bias in zip(weights, biases, strict=True):
        x = F.linear(x, weight, bias).tanh()
    return torch.autograd.grad(loss(x, target), biases)


LOSSES = {
    "mse": F.mse_loss,
    "mse of float32": lambda x, target: F.mse_loss(x.float(), target.float()),
    "L1": F.l1_loss,
    "smooth L1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "cross-entropy of bits": F.binary_cross_entropy_with_logits,
    "written": lambda x, target: (x - target).square().mean(),
}


@pytest.mark.default_pin  # 2.1 cannot trace for a TPU
@fails_on_stock
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_on_a_tpu_the_sum_beside_that_of_a_loss_is_of_its_dtype(tpu, loss):
    """Its compiler fuses the two: the bias of the linear that the loss reads, not that of the one before."""
    hidden, last = (ir(gradient) for gradient in gradients_of_biases(loss, data(512, 8, seed=9).to(bf16).to(DEVICE)))
    assert "f32[1,8] aten::sum" in last and "bf16[1,8] aten::sum" in hidden


@pytest.mark.default_pin
@fails_on_stock
def test_on_a_tpu_sums_are_of_bfloat16_beside_no_loss(tpu):
    """Nor beside one of a sum in bfloat16, or that has as many elements by chance."""
    x = torch.zeros(512, 8, dtype=bf16).to(DEVICE)
    x.mean()
    for loss in (lambda y, _: y.sum(), lambda y, target: (F.mse_loss(target, target + 1) * y).sum()):
        for gradient in gradients_of_biases(loss, x):
            assert "f32[1,8] aten::sum" not in ir(gradient)


@pytest.mark.default_pin
@fails_on_stock
def test_a_sum_beside_a_loss_has_its_infinities_and_nan(tpu):
    weight = torch.ones(3, 8, dtype=bf16).to(DEVICE)
    bias = torch.zeros(3, dtype=bf16, device=DEVICE, requires_grad=True)
    y = F.linear(torch.zeros(512, 8, dtype=bf16).to(DEVICE), weight, bias)
    target = torch.zeros(512, 3, dtype=bf16)
    target[7] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    F.mse_loss(y, target.to(DEVICE)).backward()
    assert "f32[1,3] aten::sum" in ir(bias.grad)
    found = bias.grad.cpu().tolist()
    assert found[:2] == [float("-inf"), float("inf")] and found[2] != found[2]


def gradients_of_a_norm(norm, *shape):
    """Of its weight and bias in bfloat16."""
    x, weight, bias = (torch.zeros(s, dtype=bf16).to(DEVICE).requires_grad_() for s in (shape, (8,), (8,)))
    result = norm(x, weight=weight, bias=bias)
    return [ir(g) for g in torch.autograd.grad(result, (weight, bias), torch.ones_like(x).mul(x))]


KEPT_WIDE = re.compile(r"f32\[[0-9,]*\] aten::add\(.*\)\n.*f32\[[0-9,]*\] aten::sum")
GROUP_NORM, LAYER_NORM = (
    functools.partial(F.group_norm, num_groups=2),
    functools.partial(F.layer_norm, normalized_shape=(8,)),
)


@pytest.mark.default_pin
@fails_on_stock
@pytest.mark.parametrize(
    ("norm", "shape"), [(GROUP_NORM, (2, 8, 16, 16)), (LAYER_NORM, (2, 77, 8)), (LAYER_NORM, (2, 64, 8))]
)
def test_on_a_tpu_the_gradient_of_a_norms_bias_is_summed_as_that_of_its_weight(tpu, norm, shape):
    """Its compiler would take the sum of what was widened for one of bfloat16, in a pass of its own."""
    weight, bias = gradients_of_a_norm(norm, *shape)
    assert "f32" in weight and KEPT_WIDE.search(bias)


def gradient_of_the_bias_of_a_query(tokens, heads=4, order=(0, 2, 1, 3), dtype=bf16, device=DEVICE):
    """Of a linear whose result [3, tokens, heads * 8] is viewed with heads, and permuted."""
    bias = torch.zeros(heads * 8, dtype=dtype, device=device, requires_grad=True)
    x = torch.zeros(3, tokens, heads * 8, dtype=dtype, device=device)
    query = (x + bias).view(3, tokens, heads, 8).permute(order)
    weight = data(*query.shape).to(bf16).to(device, dtype)
    return torch.autograd.grad(query, bias, weight)[0]


HEADS_SUMMED = re.compile(r"aten::sum\(.*\)\n.* aten::add\(.*\)\n.* f32\[4,8\] aten::sum")


@pytest.mark.default_pin
@fails_on_stock
@pytest.mark.parametrize("tokens", [77, 257])
def test_on_a_tpu_the_gradient_of_a_querys_bias_is_summed_before_its_heads_are_joined(tpu, tokens):
    """Joining them would move the whole once more, where tokens are no multiple of a tile's rows."""
    found = gradient_of_the_bias_of_a_query(tokens)
    assert HEADS_SUMMED.search(ir(found)) and "aten::permute" not in ir(found)
    exact = gradient_of_the_bias_of_a_query(tokens, dtype=f64, device="cpu")
    assert torch.equal(found.cpu(), exact.to(bf16))


@pytest.mark.default_pin
@fails_on_stock  # which cannot trace for a TPU
@pytest.mark.parametrize(
    ("tokens", "heads", "order"), [(80, 4, (0, 2, 1, 3)), (7, 7, (0, 1, 2, 3)), (5, 5, (2, 1, 0, 3))]
)
def test_other_sums_of_permuted_tensors_are_as_written(tpu, tokens, heads, order):
    """Of tokens that fill tiles, and of another order whose sizes are as those of heads."""
    found = gradient_of_the_bias_of_a_query(tokens, heads, order)
    assert f"bf16[1,1,{8 * heads}] aten::sum" in ir(found)
    assert "f32" not in ir(found)


# ---- dtype=


@fails_on_stock
def test_mean_with_a_dtype_converts_first():
    x = X.to(bf16).to(DEVICE)
    ir(x.mean(1, dtype=f32)).expect("""\
%0 = bf16[64,512] xla::device_data()
%1 = f32[64,512] xla::cast(%0)
%2 = f32[64] aten::mean(%1)
return %2
""")
    assert torch.equal(x.mean(dtype=f32).cpu(), x.float().mean().cpu())


@pytest.mark.ends_the_process_on_stock("2.6", "2.1")
@fails_on_stock
def test_mean_of_a_mask():
    mask = X.to(DEVICE) > 1
    assert torch.equal(mask.mean(dtype=f32).cpu(), mask.float().mean().cpu())
    assert torch.equal(mask.mean(1, dtype=bf16).cpu(), mask.cpu().mean(1, dtype=bf16))


F16_SINCE_2_6 = pytest.param(f16, marks=pytest.mark.since("2.6", "prod of float16 on the CPU"))


@pytest.mark.parametrize("to", (bf16, F16_SINCE_2_6, f32, f64), ids=str)
@pytest.mark.parametrize("of", (bf16, f16, f32, torch.int32), ids=str)
def test_dtype_argument_gives_that_dtype(of, to):
    x = torch.tensor([[3, 2, 4, 8]]).to(of)
    for function in (torch.mean, torch.sum, torch.prod):
        found, expected = function(x.to(DEVICE), dtype=to), function(x, dtype=to)
        assert found.dtype == expected.dtype
        assert torch.equal(found.cpu(), expected)
        assert torch.equal(function(x.to(DEVICE), 1, dtype=to).cpu(), function(x, 1, dtype=to))
    for function in (torch.cumsum, torch.softmax, torch.log_softmax):
        found, expected = function(x.to(DEVICE), 1, dtype=to), function(x, 1, dtype=to)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected, rtol=4 * torch.finfo(to).eps, atol=1e-2)


# ---- the graph


@fails_on_stock
def test_one_cast_each_way():
    x = X.to(bf16).to(DEVICE)
    ir(x.softmax(1)).expect("""\
%0 = bf16[64,512] xla::device_data()
%1 = f32[64,512] xla::cast(%0)
%2 = f32[64,512] aten::softmax(%1)
%3 = bf16[64,512] xla::cast(%2)
return %3
""")


@passes_on_stock
def test_other_dtypes_are_as_in_stock():
    x, i = X.to(DEVICE), TARGET.to(DEVICE)
    ir(x.sum(1), x.mean(), x.cumsum(0), x.softmax(1), x.norm(), i.sum(), F.mse_loss(x, x)).expect("""\
%0 = f32[64,512] xla::device_data()
%1 = f32[64] aten::sum(%0)
%2 = f32[] aten::mean(%0)
%3 = f32[64,512] aten::cumsum(%0)
%4 = f32[64,512] aten::softmax(%0)
%5 = f32[64,512] aten::mul(%0, %0)
%6 = f32[] aten::sum(%5)
%7 = f32[] aten::sqrt(%6)
%8 = s64[64] xla::device_data()
%9 = s64[] aten::sum(%8)
%10 = f32[] aten::mse_loss(%0, %0)
return %1, %2, %3, %4, %7, %9, %10
""")


@passes_on_stock
def test_other_operators_are_as_in_stock():
    x = X.to(bf16).to(DEVICE)
    ir(x.sum(dtype=f32), x.cumsum(1, dtype=f32), x.amax(1)).expect("""\
%0 = bf16[64,512] xla::device_data()
%1 = f32[] aten::sum(%0)
%2 = f32[64,512] aten::cumsum(%0)
%3 = bf16[64] aten::amax(%0)
return %1, %2, %3
""")


@passes_on_stock
def test_operands_of_two_dtypes_are_as_in_stock():
    x = X.to(bf16).to(DEVICE)
    assert F.mse_loss(x, X.to(DEVICE)).dtype == f32
