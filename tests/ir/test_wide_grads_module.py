"""torch_xla.amp.wide_grads, and wide gradients in modules: checkpointed, under autocast, trained with AdamW."""

import contextlib
import functools

import pytest
import torch
import torch._dynamo.compiled_autograd
import torch_xla
import torch_xla.utils.checkpoint
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import fresh
from tensors import DEVICE, bf16, f16, f32, f64, random
from torch.utils.checkpoint import checkpoint


def wide_grads(*args, **options):
    from torch_xla.amp import wide_grads

    return wide_grads(*args, **options)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8, dtype=bf16)
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8, dtype=f16), torch.nn.LayerNorm(8))
        self.head = torch.nn.Linear(8, 10, bias=False, dtype=bf16)
        self.scale = torch.nn.Parameter(torch.ones(()), requires_grad=False)
        self.index = torch.nn.Parameter(torch.ones((), dtype=torch.int32), requires_grad=False)


def tied():
    """Tied on the device: module.to("xla") makes of a parameter with two names two parameters."""
    module = Tied().to(DEVICE)
    module.head.weight = module.embedding.weight
    return module


WIDE_NAMES = ["embedding.weight", "inner.0.weight", "inner.0.bias"]

# ---- the call


@fails_on_stock
def test_names_are_those_of_reduced_precision_parameters_each_once():
    module = tied()
    assert wide_grads(module) == WIDE_NAMES
    assert {n: p.grad_dtype for n, p in module.named_parameters()} == {
        **dict.fromkeys(WIDE_NAMES, f32),
        "inner.1.weight": f32,
        "inner.1.bias": f32,
        "scale": f32,
        "index": torch.int32,
    }
    assert wide_grads(module) == []


@fails_on_stock
def test_taken_back():
    module = tied()
    wide_grads(module)
    assert wide_grads(module, enabled=False) == WIDE_NAMES
    assert wide_grads(module, enabled=False) == []
    assert all(p.grad_dtype == p.dtype for p in module.parameters())
    module.float()  # and nothing of it is left
    assert module.inner[0].weight.grad_dtype == f32


@fails_on_stock
def test_float64():
    module = torch.nn.Linear(4, 4, dtype=bf16)
    assert wide_grads(module) == wide_grads(module, dtype=f64) == ["weight", "bias"]
    assert module.weight.grad_dtype == f64


@fails_on_stock
def test_a_gradient_of_another_dtype_is_refused_and_nothing_changes():
    module = torch.nn.Linear(4, 4, dtype=bf16).to(DEVICE)
    module.bias.grad = torch.zeros(4, dtype=bf16, device=DEVICE)
    with pytest.raises(RuntimeError) as info:
        wide_grads(module)
    assert str(info.value) == (
        "expected no gradients, or gradients of dtype torch.float32, found bias (torch.bfloat16); call "
        "module.zero_grad(set_to_none=True) first"
    )
    assert module.weight.grad_dtype == module.bias.grad_dtype == bf16
    module.zero_grad()
    assert wide_grads(module) == ["weight", "bias"]
    module.weight.grad = torch.zeros(4, 4, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"dtype torch.bfloat16, found weight \(torch.float32\)"):
        wide_grads(module, enabled=False)


@fails_on_stock
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.ones(2),), TypeError, "expected a torch.nn.Module, found Tensor"),
        (
            (torch.nn.Linear(1, 1), bf16),
            ValueError,
            "expected torch.float32 or torch.float64 as dtype, found torch.bfloat16",
        ),
        (
            (torch.nn.Linear(1, 1), None),
            ValueError,
            "expected torch.float32 or torch.float64 as dtype, found None",
        ),
    ],
    ids=["no module", "narrow dtype", "no dtype"],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error) as info:
        wide_grads(*arguments)
    assert str(info.value) == message


@fails_on_stock
@pytest.mark.parametrize("topic", ["grad-dtype", "all"])
@pytest.mark.default_pin
@pytest.mark.slow
def test_switched_off(topic):
    program = """
import torch, torch_xla
from torch_xla.amp import wide_grads
try:
    wide_grads(torch.nn.Linear(1, 1))
except RuntimeError as error:
    print(str(error).split(", and ")[0])
x = torch.ones(2, 2, dtype=torch.bfloat16, device="xla", requires_grad=True)
(x @ x).sum().backward()
print(x.grad.dtype)
"""
    assert fresh("-c", program, CASTOFF_DISABLE=topic).stdout.splitlines() == [
        "wide_grads needs the topics grad-dtype, data-setter, wide-weight-grad",
        "torch.bfloat16",
    ]


@fails_on_stock
def test_what_a_change_of_the_module_does():
    """Parameters are changed in place, to another device, too, and keep their grad_dtype."""
    module = torch.nn.Linear(4, 4).bfloat16()
    wide_grads(module)
    module.to("xla")
    assert module.weight.grad_dtype == f32
    module.half()
    assert module.weight.grad_dtype == f32
    module.to("xla")
    assert module.weight.grad_dtype == f32


# ---- training steps


def block(dtype=bf16):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(dtype)


def plain(module, x):
    return module(x)


def reentrant(module, x):
    return checkpoint(module, x, use_reentrant=True)


def non_reentrant(module, x):
    return checkpoint(module, x, use_reentrant=False)


def of_torch_xla(module, x):
    return torch_xla.utils.checkpoint.checkpoint(module, x)


def under_autocast(module, x):
    with torch.autocast("xla", dtype=bf16):
        return module(x)


WAYS = [plain, reentrant, non_reentrant, of_torch_xla, under_autocast]


@fails_on_stock
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_gradients_of_a_module(way):
    """No product is rounded: the only casts are those of bfloat16 terms that a bias gradient sums in float32."""
    module = block().to(DEVICE)
    wide_grads(module)
    x, g = random(64, 16).to(DEVICE).requires_grad_(), random(64, 8, seed=2).to(DEVICE)
    torch_xla.sync()
    way(module, x).backward(g)
    assert x.grad.dtype == bf16
    for name, p in module.named_parameters():
        assert p.grad.dtype == f32
        text = ir(p.grad)
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert len(products) == name.endswith("weight") and all(" = f32[" in line for line in products), text
        assert text.count("xla::cast") <= name.endswith("bias"), text
    # The last layer's input, in bfloat16, as the device has it.
    hidden = module[1](module[0](x)).detach().cpu().double()
    exact = g.cpu().double().t() @ hidden
    torch.testing.assert_close(module[2].weight.grad.cpu().double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(module[2].bias.grad.cpu().double(), g.cpu().double().sum(0), rtol=1e-5, atol=1e-4)


@fails_on_stock
def test_autocast_adds_nothing_to_the_ir():
    texts = []
    for way in (plain, under_autocast):
        module = block().to(DEVICE)
        wide_grads(module)
        x = random(64, 16).to(DEVICE)
        torch_xla.sync()
        way(module, x).sum().backward()
        texts.append([ir(p.grad) for p in module.parameters()])
    assert texts[0] == texts[1]


def wide_linear():
    module = torch.nn.Linear(64, 32, bias=False, dtype=bf16)
    with torch.no_grad():
        module.weight.copy_(random(32, 64))
    module.to(DEVICE)
    wide_grads(module)
    return module


@fails_on_stock
@pytest.mark.parametrize("way", [plain, *WAYS[1:4]], ids=lambda way: way.__name__)
def test_micro_batches(way):
    """64 of them, each its own graph: 1e-6 where a bfloat16 gradient ends with 1e-2."""
    module = wide_linear()
    exact = torch.zeros(32, 64, dtype=f64)
    for step in range(64):
        x, g = random(16, 64, seed=step), random(16, 32, seed=1000 + step)
        way(module, x.to(DEVICE).requires_grad_()).backward(g.to(DEVICE))
        torch_xla.sync()
        exact += g.double().t() @ x.double()
    assert ((module.weight.grad.cpu().double() - exact).norm() / exact.norm()).item() < 1e-6


# ---- torch.compile


def by_way_of_openxla(module):
    return torch.compile(module, backend="openxla"), contextlib.nullcontext()


def with_a_compiled_backward(module):
    compiled_autograd = torch._dynamo.compiled_autograd
    compile_backward = functools.partial(torch.compile, backend="openxla")
    return torch.compile(module, backend="openxla"), compiled_autograd._enable(compile_backward)


@fails_on_stock
@pytest.mark.parametrize("way", [by_way_of_openxla, with_a_compiled_backward], ids=lambda way: way.__name__)
def test_compiled_micro_batches(way):
    """The dot is in the compiled graph: float32 comes out of it, and is as exact as in eager mode."""
    torch._dynamo.reset()
    module = wide_linear()
    compiled, context = way(module)
    exact = torch.zeros(32, 64, dtype=f64)
    with context:
        for step in range(4):
            x, g = random(16, 64, seed=step), random(16, 32, seed=1000 + step)
            compiled(x.to(DEVICE)).backward(g.to(DEVICE))
            assert "xla::cast" not in ir(module.weight.grad)
            torch_xla.sync()
            exact += g.double().t() @ x.double()
    assert module.weight.grad.dtype == f32
    assert ((module.weight.grad.cpu().double() - exact).norm() / exact.norm()).item() < 1e-6


@fails_on_stock
@pytest.mark.parametrize("enabled", [True, False], ids=["wide", "taken back"])
def test_compiled_gradients_of_a_block(enabled):
    """Their dtypes are those of now, though it was compiled when they were others."""
    torch._dynamo.reset()
    module, x, g = block().to(DEVICE), random(64, 16).to(DEVICE), random(64, 8, seed=2)
    compiled = torch.compile(module, backend="openxla")
    wide_grads(module, enabled=not enabled)
    compiled(x).backward(g.to(DEVICE))
    module.zero_grad()
    wide_grads(module, enabled=enabled)
    compiled(x).backward(g.to(DEVICE))
    assert {p.grad.dtype for p in module.parameters()} == {f32 if enabled else bf16}
    exact = g.double().sum(0)
    error = ((module[2].bias.grad.cpu().double() - exact).norm() / exact.norm()).item()
    assert error <= 1e-6 if enabled else error <= 2e-2


# ---- XLAPatchedLinear


def patched_linear(bias=False):
    from patched_linear import apply_xla_patch_to_nn_linear

    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(16, 8, bias=bias, dtype=bf16)).to(DEVICE)
    return apply_xla_patch_to_nn_linear(module)


@fails_on_stock
def test_patched_linear_of_three_dimensions():
    """One dot over both leading dimensions."""
    module = patched_linear(bias=True)
    wide_grads(module)
    x, g = random(4, 6, 16), random(4, 6, 8, seed=1)
    xd = x.to(DEVICE).requires_grad_()
    gd = g.to(DEVICE)
    torch_xla.sync()
    module(xd).backward(gd)
    weight, bias = module.parameters()
    ir(weight.grad).expect("""\
%0 = bf16[4,6,16] xla::device_data()
%1 = bf16[4,6,8] xla::device_data()
%2 = f32[8,16] xla::dot_general(%1, %0)
return %2
""")
    ir(bias.grad).expect("""\
%0 = bf16[4,6,8] xla::device_data()
%1 = f32[8] aten::sum(%0)
return %1
""")
    assert (weight.grad.dtype, bias.grad.dtype, xd.grad.dtype) == (f32, f32, bf16)
    exact = torch.einsum("bsm,bsn->mn", g.double(), x.double())
    torch.testing.assert_close(weight.grad.cpu().double(), exact, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(bias.grad.cpu().double(), g.double().sum((0, 1)), rtol=1e-6, atol=1e-5)


@fails_on_stock
@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 4, 16)], ids=str)
def test_patched_linear_of_other_ranks(shape):
    module = patched_linear(bias=True)
    wide_grads(module)
    x, g = random(*shape), random(*shape[:-1], 8, seed=1)
    module(x.to(DEVICE)).backward(g.to(DEVICE))
    weight, bias = module.parameters()
    exact = g.double().reshape(-1, 8).t() @ x.double().reshape(-1, 16)
    torch.testing.assert_close(weight.grad.cpu().double(), exact, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(bias.grad.cpu().double(), g.double().reshape(-1, 8).sum(0), rtol=1e-6, atol=1e-5)


@fails_on_stock
def test_patched_linear_with_one_of_the_two_wide():
    for wide, narrow in (("weight", "bias"), ("bias", "weight")):
        module = patched_linear(bias=True)
        getattr(module[0], wide).grad_dtype = f32
        module(random(4, 6, 16).to(DEVICE)).backward(random(4, 6, 8).to(DEVICE))
        assert getattr(module[0], wide).grad.dtype == f32 and getattr(module[0], narrow).grad.dtype == bf16


@fails_on_stock
def test_patched_linear_under_autocast():
    module, x = patched_linear(), random(4, 6, 16).to(DEVICE)
    wide_grads(module)
    torch_xla.sync()
    with torch.autocast("xla", dtype=bf16):
        y = module(x)
    y.sum().backward()
    assert module[0].weight.grad.dtype == f32 and "xla::cast" not in ir(module[0].weight.grad)


@passes_on_stock
def test_patched_linear_without_a_grad_dtype_is_stocks():
    module, x = patched_linear(), random(4, 6, 16).to(DEVICE)
    torch_xla.sync()
    module(x).sum().backward()
    assert module[0].weight.grad.dtype == bf16 and "aten::einsum" in ir(module[0].weight.grad)
