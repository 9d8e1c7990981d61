"""Gradients of weights that go through functions of weights, and through operators without a kernel of their own.

Every form is compared with the same program in float64 on the CPU. Where the derivative is taken at values that the
forward pass has rounded to bfloat16, float64's differ by that; there the bound is wide, and that the elements are no
bfloat16 numbers shows that the gradient was not rounded itself.
"""

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import run
from tensors import DEVICE, bf16, f16, f32, f64, random
from torch.utils.checkpoint import checkpoint
from torch_xla.experimental.scan_layers import scan_layers

ROWS = (0, 2, 1, 1)
EXACT, SAVED = 1e-6, 6e-3  # what the formula saves is as it was, or was rounded in the forward pass


def rows(w):
    return torch.tensor(ROWS, device=w.device)


def every_column(w):
    return rows(w)[:, None].expand(len(ROWS), w.shape[1])


def mask(w):
    return (torch.arange(w.numel(), device=w.device).view(w.shape) % 3) > 0


def standardized(w):
    dims = tuple(range(1, w.dim()))
    return (w - w.mean(dims, keepdim=True)) / (w.var(dims, keepdim=True, unbiased=False) + 1e-2).sqrt()


def gates(w):
    return (w.tanh() * w.sigmoid()).softmax(0)


def low(w):
    """The narrow dtype of a program; in the reference, float64's."""
    return w.dtype


# name: (bound, function of an input and the weights, shape of the input, shapes of the weights)
LINEAR, BATCH = ((3, 8), (6, 8)), ((4, 3, 8), (3, 8, 6))
OF_WEIGHTS = {
    "float": (EXACT, lambda x, w: F.linear(x.to(wide_of(x)), w.to(wide_of(w))), *LINEAR),
    "to and back": (EXACT, lambda x, w: F.linear(x, (w.to(wide_of(w)) * 2).to(low(w))), *LINEAR),
    "gemma's norm": (EXACT, lambda x, w: (x.to(wide_of(x)) * (1 + w.to(wide_of(w)))).to(low(x)), (4, 8), (8,)),
    "mamba's A_log": (EXACT, lambda x, w: x.to(wide_of(x)) * -w.to(wide_of(w)).exp(), (4, 8), (8,)),
    "mamba's D": (EXACT, lambda x, w: x + w.to(wide_of(w)).to(low(x)) * x, (4, 8), (8,)),
    "index": (EXACT, lambda x, w: torch.bmm(x, w[rows(w)]), *BATCH),
    "index of views": (EXACT, lambda x, w: torch.bmm(x, w.mT[rows(w)].mT), *BATCH),
    "index_select": (EXACT, lambda x, w: torch.bmm(x, w.index_select(0, rows(w))), *BATCH),
    "experts by einsum": (EXACT, lambda x, w: torch.einsum("ti,tio->to", x, w[rows(w)]), (4, 8), (3, 8, 6)),
    "gather": (EXACT, lambda x, w: F.linear(x, w.gather(0, every_column(w))), *LINEAR),
    "take_along_dim": (EXACT, lambda x, w: F.linear(x, w.take_along_dim(every_column(w), 0)), *LINEAR),
    "stack": (EXACT, lambda x, a, b: torch.bmm(x, torch.stack([a, b])), (2, 3, 8), (8, 6), (8, 6)),
    "cat": (EXACT, lambda x, a, b: F.linear(x, torch.cat([a, b])), (3, 8), (4, 8), (2, 8)),
    "split of cat": (EXACT, lambda x, a, b: F.linear(x, torch.cat([a, b]).split([5, 1])[0]), (3, 8), (4, 8), (2, 8)),
    "chunk": (EXACT, lambda x, w: F.linear(x, w.chunk(2)[1].clone()), *LINEAR),
    "unbind": (EXACT, lambda x, w: F.linear(x, torch.stack(w.unbind()[1:])), *LINEAR),
    "clone": (EXACT, lambda x, w: F.linear(x, w.clone()), *LINEAR),
    "contiguous": (EXACT, lambda x, w: x @ w.t().contiguous(), *LINEAR),
    "where": (EXACT, lambda x, w: F.linear(x, torch.where(mask(w), w, 0)), *LINEAR),
    "masked_fill": (EXACT, lambda x, w: F.linear(x, w.masked_fill(mask(w), 0)), *LINEAR),
    "a mask": (EXACT, lambda x, w: F.linear(x, w * mask(w).to(low(w))), *LINEAR),
    "tril": (EXACT, lambda x, w: F.linear(x, w.tril()), *LINEAR),
    "flip": (EXACT, lambda x, w: F.linear(x, w.flip(0)), *LINEAR),
    "roll": (EXACT, lambda x, w: F.linear(x, w.roll(1, 0)), *LINEAR),
    "pad": (EXACT, lambda x, w: F.linear(x, F.pad(w, (0, 0, 1, 1))), *LINEAR),
    "repeat": (EXACT, lambda x, w: F.linear(x, w.repeat(2, 1)), *LINEAR),
    "repeat_interleave": (EXACT, lambda x, w: F.linear(x, w.repeat_interleave(2, 0)), *LINEAR),
    "times a number": (EXACT, lambda x, w: F.linear(x, w * 3 + 1), *LINEAR),
    "abs": (EXACT, lambda x, w: F.linear(x, w.abs()), *LINEAR),
    "neg": (EXACT, lambda x, w: F.linear(x, -w), *LINEAR),
    "exp": (EXACT, lambda x, w: F.linear(x, w.exp()), *LINEAR),
    "clamp": (EXACT, lambda x, w: F.linear(x, w.clamp(-0.5, 0.5)), *LINEAR),
    "relu": (EXACT, lambda x, w: F.linear(x, w.relu()), *LINEAR),
    "log": (SAVED, lambda x, w: F.linear(x, (w.abs() + 1).log()), *LINEAR),
    "tanh": (SAVED, lambda x, w: F.linear(x, w.tanh()), *LINEAR),
    "sigmoid": (SAVED, lambda x, w: F.linear(x, w.sigmoid()), *LINEAR),
    "silu": (EXACT, lambda x, w: F.linear(x, F.silu(w)), *LINEAR),
    "softplus": (EXACT, lambda x, w: F.linear(x, F.softplus(w)), *LINEAR),
    "softplus, sharp": (EXACT, lambda x, w: F.linear(x, F.softplus(w, beta=8, threshold=2)), *LINEAR),
    "softmax": (SAVED, lambda x, w: F.linear(x, w.softmax(-1)), *LINEAR),
    "a gate": (SAVED, lambda x, w: x * w.tanh(), (64, 8), (8,)),
    "gates of any depth": (2 * SAVED, lambda x, w: F.linear(x, gates(w.t()).t()), *LINEAR),
    "norm": (SAVED, lambda x, w: F.linear(x, F.normalize(w, dim=1)), *LINEAR),
    "weight_norm": (SAVED, lambda x, v, g: F.linear(x, torch._weight_norm(v, g, 0)), (3, 8), (6, 8), (6, 1)),
    "lora": (EXACT, lambda x, b, a: F.linear(x, (b @ a) * 0.5), (3, 8), (6, 2), (2, 8)),
    "lora on a weight": (EXACT, lambda x, w, b, a: F.linear(x, w + (b @ a) * 2), (3, 8), (6, 8), (6, 2), (2, 8)),
    "einsum": (EXACT, lambda x, a, b: F.linear(x, torch.einsum("or,ri->oi", a, b)), (3, 8), (6, 2), (2, 8)),
    "a penalty": (EXACT, lambda x, w: x.sum() * 0 + (w**2).sum(), *LINEAR),
}
OTHERS = {
    "div": (EXACT, lambda x, w: x / w, (3, 8), (8,)),
    "div by a function": (EXACT, lambda x, w: x / (w.abs() + 1), (3, 8), (8,)),
    "prelu": (EXACT, F.prelu, (3, 8), (8,)),
    "instance_norm": (EXACT, lambda x, w, b: F.instance_norm(x, None, None, w, b), (3, 8, 16), (8,), (8,)),
    "positions": (EXACT, lambda x, w: x + w[rows(w)], (4, 8), (6, 8)),
    "class token": (EXACT, lambda x, w: torch.cat([w.expand(3, 1, 8), x], 1), (3, 4, 8), (1, 1, 8)),
    "where of data": (EXACT, lambda x, w: torch.where(x > 0, x, w), (3, 8), (8,)),
}
FORMS = {**OF_WEIGHTS, **OTHERS}
SUMS = ("class token", "where of data", "positions")  # of few bfloat16 numbers
# Rounded, and reported.
ROUNDED = {
    "take": (lambda x, w: F.linear(x, w.take(every_column(w))), *LINEAR),
    "erf": (lambda x, w: F.linear(x, w.erf()), *LINEAR),
    "elu": (lambda x, w: F.linear(x, F.elu(w)), *LINEAR),
    "of any depth": (lambda x, w: F.linear(x, (w.t().erf() * w.t().sigmoid()).softmax(0).t()), *LINEAR),
    "standardized": (lambda x, w: F.conv1d(x, standardized(w)), (3, 8, 9), (6, 8, 3)),
    "pow": (lambda x, w: (x.abs() + 1) ** w, (3, 8), (8,)),
    "add with alpha": (lambda x, w: torch.add(x, w, alpha=3), (3, 8), (8,)),
    "maximum": (torch.maximum, (3, 8), (8,)),
    "lerp": (lambda x, w: torch.lerp(x, x * 2, w.expand_as(x)), (3, 8), (8,)),
    "bilinear": (lambda x, w: F.bilinear(x, x, w), (3, 8), (5, 8, 8)),
    "embedding_bag": (
        lambda x, w: F.embedding_bag(rows(w), w, torch.tensor([0, 3], device=w.device)) + x[:2],
        (3, 6),
        (5, 6),
    ),
}


def wide_of(t):
    return f64 if t.dtype == f64 else f32


def leaves(shapes, grad_dtype=None, dtype=bf16):
    tensors = [random(*shape, seed=i + 3).to(dtype).to(DEVICE).requires_grad_() for i, shape in enumerate(shapes)]
    for tensor in tensors:
        if grad_dtype is not None:
            tensor.grad_dtype = grad_dtype
    return tensors


def data(shape, dtype=bf16):
    return random(*shape, dtype=dtype).to(DEVICE).requires_grad_()


def reference(function, shape, shapes, dtype=bf16):
    """The gradients of the weights in float64, of the same numbers."""
    weights = [random(*s, seed=i + 3).to(dtype).double().requires_grad_() for i, s in enumerate(shapes)]
    output = function(random(*shape, dtype=dtype).double(), *weights)
    output.backward(random(*output.shape, dtype=dtype, seed=11).double())
    return [w.grad for w in weights]


def backward(function, x, weights, dtype=bf16):
    output = function(x, *weights)
    output.backward(random(*output.shape, dtype=dtype, seed=11).to(output.dtype).to(DEVICE))
    return output


def error(found, expected):
    return ((found.cpu().double() - expected).norm() / expected.norm()).item()


def is_rounded(grad):
    return torch.equal(grad.cpu(), grad.cpu().to(bf16).float())


def check(form, bound, dtype=bf16, wrap=lambda function: function):
    _, function, shape, *shapes = FORMS[form]
    weights = leaves(shapes, f32, dtype)
    backward(wrap(function), data(shape, dtype), weights, dtype)
    for w, expected in zip(weights, reference(function, shape, shapes, dtype), strict=True):
        assert w.grad.dtype == f32
        assert error(w.grad, expected) <= bound


def report(function, shape, shapes):
    from torch_xla.amp import wide_grads_report  # not on stock

    module = torch.nn.Module()
    module.weights = torch.nn.ParameterList(leaves(shapes))
    for p in module.weights:
        p.grad_dtype = f32
    weights = list(module.weights)
    return wide_grads_report(module, lambda: backward(function, data(shape), weights)), weights


@fails_on_stock
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_float32(form):
    """In value, in what their elements are, and for the report."""
    bound, function, shape, *shapes = FORMS[form]
    found, weights = report(function, shape, shapes)
    assert found.all_wide, str(found)
    for w, expected in zip(weights, reference(function, shape, shapes), strict=True):
        assert w.grad.dtype == f32
        assert error(w.grad, expected) <= bound
        assert form in SUMS or not is_rounded(w.grad)


@fails_on_stock
@pytest.mark.parametrize("form", ROUNDED)
def test_the_report_says_what_is_rounded(form):
    function, shape, *shapes = ROUNDED[form]
    found, _ = report(function, shape, shapes)
    assert {p.verdict for p in found.parameters} == {"rounded"}, str(found)


@pytest.mark.parametrize("form", FORMS)
def test_all_else_is_as_without(form):
    """The values, and the gradients of what is no weight, are those of weights without a grad_dtype."""
    _, function, shape, *shapes = FORMS[form]
    results = []
    for grad_dtype in (None, f32):
        x = data(shape)
        output = backward(function, x, leaves(shapes, grad_dtype))
        # An einsum with a wide operand is made of bmm, or of fewer operators.
        text = "" if "einsum" in form else ir(function(data(shape), *leaves(shapes, grad_dtype)))
        results.append((output.detach().cpu(), x.grad.cpu(), text))
    for plain, wide in zip(*results, strict=True):
        assert torch.equal(plain, wide) if isinstance(plain, torch.Tensor) else plain == wide


@fails_on_stock
@pytest.mark.parametrize("form", ["abs", "lora on a weight", "div", "index"])
def test_float16(form):
    check(form, EXACT, dtype=f16)


@fails_on_stock
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("form", ["float", "abs", "index", "div", "stack", "tanh"])
def test_under_checkpointing(form, reentrant):
    check(form, FORMS[form][0], wrap=lambda f: lambda *t: checkpoint(f, *t, use_reentrant=reentrant))


@fails_on_stock
@pytest.mark.parametrize("form", ["float", "abs", "index", "div", "stack", "lora", "weight_norm", "a gate"])
def test_under_torch_compile(form):
    check(form, FORMS[form][0], wrap=lambda f: torch.compile(f, backend="openxla"))


@fails_on_stock
def test_a_compiled_function_is_compiled_again_for_wide_gradients(tmp_path):
    """In a process that has not used a grad_dtype when the function is compiled first."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch, torch_xla
function = torch.compile(lambda x, w: torch.nn.functional.linear(x, w.float()).sum(), backend="openxla")
x = torch.randn(64, 8).to("xla")
exact = x.cpu().sum(0).expand(4, 8)
for wide in (False, True, False, True):
    w = torch.ones(4, 8, dtype=torch.bfloat16, device="xla", requires_grad=True)
    if wide:
        w.grad_dtype = torch.float32
    function(x, w).backward()
    torch.testing.assert_close(w.grad.cpu(), exact.to(w.grad.dtype), rtol=1e-5 if wide else 1e-2, atol=1e-5)
    assert w.grad.dtype == (torch.float32 if wide else torch.bfloat16)
print("as wide as asked")
"""
    )
    assert "as wide as asked" in run(program)


@fails_on_stock
@pytest.mark.parametrize("form", ["abs", "div", "lora", "index", "tanh", "softplus", "softmax"])
def test_under_compiled_autograd(form):
    _, function, shape, *shapes = FORMS[form]
    weights = leaves(shapes, f32)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        backward(function, data(shape), weights)
    for w, expected in zip(weights, reference(function, shape, shapes), strict=True):
        assert w.grad.dtype == f32
        assert error(w.grad, expected) <= FORMS[form][0]


@fails_on_stock
def test_under_autocast():
    w = leaves([(8, 8)], f32)[0]
    with torch.autocast("xla", dtype=bf16):
        (F.linear(data((3, 8)), w.tanh()) / w.sum()).sum().backward()
    assert w.grad.dtype == f32
    assert not is_rounded(w.grad)


@fails_on_stock
@pytest.mark.parametrize("function", [torch.exp, torch.tanh, F.silu, F.softplus, gates])
def test_double_backward(function):
    [w], [exact] = leaves([(6, 8)], f32), [random(6, 8, seed=3).double().requires_grad_()]
    for weight, x in ((w, data((3, 8))), (exact, random(3, 8).double().requires_grad_())):
        loss = F.linear(x, function(weight)).square().sum()
        [first] = torch.autograd.grad(loss, weight, create_graph=True)
        first.sum().backward()
    assert w.grad.dtype == f32
    assert error(w.grad, exact.grad) <= 2e-2  # the squares, and what comes back of them, are bfloat16


@fails_on_stock
def test_the_graph_of_a_function():
    """One cast of what arrives, or none, and float32 from there."""
    [w], x = leaves([(6, 8)], f32), data((3, 8))
    torch_xla.sync()
    grad = random(3, 6).to(DEVICE)
    torch_xla.sync()
    F.linear(x, w.abs()).backward(grad)
    ir(w.grad).expect("""\
%0 = bf16[6,8] xla::device_data()
%1 = bf16[6,8] aten::sgn(%0)
%2 = f32[6,8] xla::cast(%1)
%3 = bf16[3,6] xla::device_data()
%4 = bf16[3,8] xla::device_data()
%5 = f32[8,6] xla::dot_general(%4, %3)
%6 = f32[6,8] aten::permute(%5)
%7 = f32[6,8] aten::mul(%6, %2)
return %7
""")


@fails_on_stock
def test_layers_that_are_scanned():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return x + torch.tanh(self.linear(self.norm(x)))

    torch.manual_seed(0)
    layers = torch.nn.ModuleList(Layer() for _ in range(3)).to(bf16).to(DEVICE)
    found = []
    for wide in (False, True, False, True):  # the traces of both are kept
        layers.zero_grad()
        for p in layers.parameters():
            p.grad_dtype = f32 if wide else bf16
        scan_layers(layers, data((16, 8))).sum().backward()
        torch_xla.sync()
        found.append([p.grad for p in layers.parameters()])
    assert all(g.dtype == bf16 for g in found[0] + found[2])
    assert all(g.dtype == f32 and not is_rounded(g) for g in found[1] + found[3])


@fails_on_stock
def test_a_network_is_not_made_wide():
    """Rows of a table are activations, for all that anyone can tell: what is made of them stays bfloat16."""
    table, a, b, scale = leaves([(50, 8), (8, 8), (8, 8), (8,)], f32)
    x = table[torch.arange(24, device=DEVICE)]
    hidden = F.linear(torch.relu(F.linear(x, a)) * scale, b)
    assert hidden.grad_fn.name() == "WideMatmulBackward0"
    assert hidden.grad_dtype == bf16
    hidden.backward(torch.ones_like(hidden))
    text = ir(a.grad, b.grad, table.grad)
    assert text.count("f32[8,8] xla::dot_general") == 2
    assert text.count("bf16[24,8] aten::mm") >= 2


@fails_on_stock
@pytest.mark.parametrize("shape", [(24, 8), (2, 3, 8)])
def test_a_constant_input_is_not_a_weight(shape):
    w = leaves([(8,)], f32)[0]
    output = random(*shape).to(DEVICE) / w
    assert output.grad_dtype == bf16
    output.backward(torch.ones_like(output))
    assert not is_rounded(w.grad)


@passes_on_stock
def test_no_gradient_no_nodes():
    w = leaves([(6, 8)])[0]
    with torch.no_grad():
        assert w.abs().grad_fn is None
    assert w.abs().grad_fn.name() == "AbsBackward0"


@fails_on_stock
def test_random_masks_are_drawn_once():
    """Dropout of a weight is stock's: a second call would draw another mask."""
    w = leaves([(64, 64)], f32)[0]
    dropped = F.dropout(w, 0.5)
    dropped.backward(torch.ones_like(dropped))
    assert torch.equal(dropped.detach().cpu() != 0, w.grad.cpu() != 0)
    assert w.grad.dtype == f32


@fails_on_stock
def test_another_device_is_not_asked_twice():
    w = leaves([(4,)], f32)[0]
    torch_xla.sync()
    moved = w.exp().cpu()
    moved.backward(torch.ones(4, dtype=bf16))
    assert w.grad.dtype == f32
