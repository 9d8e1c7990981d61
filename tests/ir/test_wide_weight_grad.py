"""Gradients of weights whose grad_dtype is wider than they are: made by operators that accumulate in float32.

Every reference is the same program in float64 on the CPU, of the same bfloat16 numbers. The gradients that
go in are bfloat16 too, so all that may differ is the order of float32 sums.
"""

import contextlib
import functools
import threading
import warnings

import pytest
import torch
import torch._dynamo.compiled_autograd
import torch.nn.functional as F
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import completed
from tensors import DEVICE, bf16, f16, f32, f64
from torch._dynamo.utils import counters
from torch.autograd import forward_ad


def numbers(*shape, dtype=bf16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def on_device(tensor):
    """Device data: nothing of how it was made is in the graphs that follow."""
    moved = tensor.detach().to(DEVICE)
    torch_xla.sync()
    return moved


def wide(tensor):
    leaf = on_device(tensor).requires_grad_()
    leaf.grad_dtype = f32
    return leaf


def narrow(tensor):
    return on_device(tensor).requires_grad_()


def error(found, expected):
    expected = expected.detach().double()
    return ((found.detach().cpu().double() - expected).norm() / expected.norm()).item()


def in_float64(function, inputs, grad):
    """The gradients of ``inputs``, those of them that have one, in float64 on the CPU."""
    leaves = [t.double().requires_grad_() if t.is_floating_point() else t for t in inputs]
    function(*leaves).backward(grad.double())
    return [leaf.grad for leaf in leaves]


def graph_of(tensor):
    names, stack = set(), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in names:
            names.add(node)
            stack += [behind for behind, _ in node.next_functions]
    return {node.name() for node in names}


# ---- the graph


@fails_on_stock
def test_linear_accumulates_a_float32_dot():
    w = wide(numbers(16, 8))
    for seed in range(2):
        torch_xla.sync()
        x, g = on_device(numbers(4, 8, seed=seed)), on_device(numbers(4, 16, seed=seed))
        F.linear(x, w).backward(g)
    ir(w.grad).expect("""\
%0 = f32[] prim::Constant()
%1 = bf16[4,16] xla::device_data()
%2 = bf16[4,8] xla::device_data()
%3 = f32[8,16] xla::dot_general(%2, %1)
%4 = f32[16,8] aten::permute(%3)
%5 = f32[16,8] xla::device_data()
%6 = f32[16,8] aten::add(%5, %4, %0)
%7 = f32[8,16] aten::permute(%6)
%8 = f32[16,8] aten::permute(%7)
return %8
""")


@fails_on_stock
def test_convolution_accumulates_a_float32_convolution():
    w = wide(numbers(6, 4, 3, 3))
    for seed in range(2):
        torch_xla.sync()
        x, g = on_device(numbers(2, 4, 8, 8, seed=seed)), on_device(numbers(2, 6, 8, 8, seed=seed))
        F.conv2d(x, w, padding=1).backward(g)
    ir(w.grad).expect("""\
%0 = f32[] prim::Constant()
%1 = bf16[2,6,8,8] xla::device_data()
%2 = bf16[2,4,8,8] xla::device_data()
%3 = f32[6,4,3,3] xla::convolution(%2, %1)
%4 = f32[6,4,3,3] xla::device_data()
%5 = f32[6,4,3,3] aten::add(%4, %3, %0)
return %5
""")


@fails_on_stock
def test_einsum_has_one_dot():
    w, x, g = wide(numbers(8, 4, 6)), on_device(numbers(2, 5, 8)), on_device(numbers(2, 5, 4, 6))
    torch.einsum("bsi,ihd->bshd", x, w).backward(g)
    ir(w.grad).expect("""\
%0 = bf16[2,5,4,6] xla::device_data()
%1 = bf16[10,24] aten::view(%0)
%2 = bf16[2,5,8] xla::device_data()
%3 = bf16[10,8] aten::view(%2)
%4 = f32[8,24] xla::dot_general(%3, %1)
%5 = f32[8,4,6] aten::view(%4)
return %5
""")


# ---- numbers

# name: (function of an input and the weights, shape of the input, shapes of the weights)
PRODUCTS = {
    "linear of a vector": (F.linear, (8,), (6, 8)),
    "linear": (F.linear, (16, 8), (6, 8)),
    "linear with bias": (F.linear, (16, 8), (6, 8), (6,)),
    "linear in 3-D with bias": (F.linear, (4, 8, 8), (6, 8), (6,)),
    "linear in 4-D": (F.linear, (2, 4, 8, 8), (6, 8)),
    "mm": (torch.mm, (16, 8), (8, 6)),
    "mm from the left": (lambda x, w: w @ x, (8, 6), (5, 8)),
    "mv": (torch.mv, (16, 8), (8,)),
    "mv of a wide matrix": (lambda x, w: torch.mv(w, x), (8,), (6, 8)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2), (16, 8), (8, 6), (6,)),
    "bmm": (torch.bmm, (3, 16, 8), (3, 8, 6)),
    "baddbmm": (lambda x, w, b: torch.baddbmm(b, x, w), (3, 16, 8), (3, 8, 6), (6,)),
    "matmul of 3-D and 2-D": (torch.matmul, (3, 16, 8), (8, 6)),
    "matmul of 4-D and 3-D": (torch.matmul, (2, 3, 16, 8), (3, 8, 6)),
    "bilinear by hand": (lambda x, w: ((x @ w) * x).sum(-1), (16, 8), (8, 8)),
    "t": (lambda x, w: x @ w.t(), (16, 8), (6, 8)),
    "mT of a batch": (lambda x, w: x @ w.mT, (3, 16, 8), (3, 6, 8)),
    "view": (lambda x, w: x @ w.view(8, 6), (16, 8), (48,)),
    "permute and reshape": (lambda x, w: x @ w.permute(2, 0, 1).reshape(8, 6), (16, 8), (2, 3, 8)),
    "select": (lambda x, w: F.linear(x, w[1]), (16, 8), (3, 6, 8)),
    "slices": (lambda x, w: torch.cat([F.linear(x, w[i : i + 3]) for i in (0, 3)], -1), (16, 8), (6, 8)),
    "chunk": (lambda x, w: torch.cat([F.linear(x, p) for p in w.chunk(3)], -1), (16, 8), (6, 8)),
    "part of a chunk": (lambda x, w: F.linear(x, w.chunk(3)[1]), (16, 8), (6, 8)),
    "split": (lambda x, w: torch.cat([F.linear(x, p) for p in w.split([4, 2])], -1), (16, 8), (6, 8)),
    "unbind": (lambda x, w: torch.cat([F.linear(x, p) for p in w.unbind()], -1), (16, 8), (3, 6, 8)),
    "expand": (lambda x, w: x @ w.expand(3, 8, 6), (3, 16, 8), (1, 8, 6)),
    "twice": (lambda x, w: F.linear(x, w) + x @ w.t(), (16, 8), (6, 8)),
}

EINSUMS = {
    equation: (lambda x, w, equation=equation: torch.einsum(equation, x, w), *shapes)
    for equation, *shapes in (
        ("bi,oi->bo", (16, 8), (6, 8)),
        ("bsi,io->bso", (3, 16, 8), (8, 6)),
        ("bsi,oi", (3, 16, 8), (6, 8)),
        ("bsi,ihd->bshd", (3, 16, 8), (8, 2, 4)),
        ("bshd,hdo->bso", (3, 16, 2, 4), (2, 4, 6)),
        ("bei,eio->beo", (16, 3, 8), (3, 8, 6)),
        ("...i,oi->...o", (3, 16, 8), (6, 8)),
        ("...ij,...jk->...ik", (3, 2, 16, 8), (3, 2, 8, 6)),
        ("bsi,hid->bshd", (3, 16, 8), (2, 8, 4)),
        ("abci,obic->aboc", (8, 3, 4, 16), (5, 3, 16, 4)),
        ("bi,bj->ij", (16, 8), (16, 6)),
        ("bi , o i -> b o", (16, 8), (6, 8)),
        ("bii,oi->bo", (4, 8, 8), (6, 8)),
        ("bij,oj->bo", (4, 3, 8), (6, 8)),
    )
}

CONVOLUTIONS = {
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2, stride=2), (4, 8, 31), (6, 8, 5)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (4, 8, 10, 10), (6, 8, 3, 3)),
    "conv2d with bias": (F.conv2d, (4, 8, 9, 9), (6, 8, 3, 3), (6,)),
    "conv2d, groups, stride, dilation": (
        lambda x, w: F.conv2d(x, w, stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=2),
        (4, 8, 17, 15),
        (6, 4, 3, 5),
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=8), (4, 8, 9, 9), (16, 1, 3, 3)),
    "conv2d without a batch": (F.conv2d, (8, 9, 9), (6, 8, 3, 3)),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), (2, 4, 5, 6, 7), (6, 4, 3, 3, 3)),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=2),
        (4, 8, 7, 7),
        (8, 3, 3, 3),
    ),
}

NORMS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (4, 16, 8), (8,), (8,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (4, 8, 6), (8,), (8,)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (4, 8, 6), (8,), (8,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w), (4, 16, 8), (8,)),
}

# The input of the weight's product is itself rounded to bfloat16 in the forward pass.
ROUNDED_FORWARD = {"layer_norm", "group_norm", "rms_norm"}


def accumulate(
    function, shape, *weights, dtype=bf16, steps=2, context=torch.enable_grad, backward=contextlib.nullcontext
):
    """Weights after ``steps`` micro-batches with their float64 gradients, and the last input."""
    values = [numbers(*weight, dtype=dtype, seed=7) for weight in weights]
    leaves = [wide(value) for value in values]
    expected = [torch.zeros(weight, dtype=f64) for weight in weights]
    for seed in range(steps):
        torch_xla.sync()
        x = numbers(*shape, dtype=dtype, seed=seed)
        device_x = narrow(x)
        with context():
            output = function(device_x, *leaves)
        grad = numbers(*output.shape, dtype=output.dtype, seed=seed)
        device_grad = on_device(grad)
        with backward():
            output.backward(device_grad)
        gradients = in_float64(function, [x, *values], grad)[1:]
        expected = [total + gradient for total, gradient in zip(expected, gradients, strict=True)]
    return leaves, expected, device_x


def check(case, dtype=bf16, bound=1e-6, **options):
    leaves, expected, x = accumulate(*case, dtype=dtype, **options)
    assert x.grad.dtype == dtype
    assert "f64" not in ir(*(leaf.grad for leaf in leaves))
    for leaf, reference in zip(leaves, expected, strict=True):
        assert leaf.grad.dtype == f32
        assert leaf.dtype == dtype
        assert error(leaf.grad, reference) <= bound
    return leaves


@fails_on_stock
@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products(name):
    by_hand = name == "bilinear by hand"
    leaves = check(PRODUCTS[name], bound=5e-3 if by_hand else 1e-6)
    assert by_hand or "xla::cast" not in ir(leaves[0].grad)


@fails_on_stock
@pytest.mark.parametrize("name", ["linear with bias", "bmm", "chunk"])
def test_float16(name):
    check(PRODUCTS[name], dtype=f16)


@fails_on_stock
@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum(equation):
    # What an operand is summed over alone is rounded to bfloat16 in the forward pass.
    check(EINSUMS[equation], bound=3e-3 if equation == "bij,oj->bo" else 1e-6)


@fails_on_stock
@pytest.mark.parametrize("path", [None, [0, 1, 0, 1]], ids=["left to right", "path"])
def test_einsum_of_three_operands(path):
    x, a, b = numbers(16, 8), numbers(8, 5), numbers(5, 6)
    leaves = [wide(a), wide(b)]
    output = torch.ops.aten.einsum("bi,ij,jk->bk", [on_device(x), *leaves], path=path)
    grad = numbers(16, 6)
    output.backward(on_device(grad))
    text = ir(*(leaf.grad for leaf in leaves))
    assert text.count("f32") and "xla::cast" not in text
    expected = in_float64(lambda *t: torch.einsum("bi,ij,jk->bk", *t), [x, a, b], grad)[1:]
    for leaf, reference in zip(leaves, expected, strict=True):
        assert leaf.grad.dtype == f32
        assert error(leaf.grad, reference) <= 5e-3  # x @ a, and what comes back of it, are bfloat16


@fails_on_stock
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name):
    check(CONVOLUTIONS[name])


@fails_on_stock
@pytest.mark.parametrize("name", NORMS)
def test_norms(name):
    check(NORMS[name], bound=5e-3 if name in ROUNDED_FORWARD else 1e-6)


@fails_on_stock
def test_a_norms_gradient_is_summed_in_float32():
    """So are the products, with what layer_norm multiplies by its weight: that is not rounded to bfloat16."""
    w, x, g = wide(numbers(8)), narrow(numbers(256, 8)), numbers(256, 8)
    F.layer_norm(x, (8,), w).backward(on_device(g))
    assert error(w.grad, (g.double() * F.layer_norm(x.detach().cpu().double(), (8,))).sum(0)) <= 1e-6


@fails_on_stock
@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding(options):
    w, ids, g = numbers(10, 4), torch.arange(24).remainder(7).view(4, 6), numbers(4, 6, 4)
    leaf = wide(w)
    F.embedding(on_device(ids), leaf, **options).backward(on_device(g))
    expected = in_float64(lambda weight: F.embedding(ids, weight, **options), [w], g)[0]
    assert leaf.grad.dtype == f32
    assert error(leaf.grad, expected) <= 1e-6


@fails_on_stock
def test_tied_embedding():
    w, ids, g = numbers(20, 8), torch.arange(12).remainder(5), numbers(12, 20)
    leaf = wide(w)
    F.linear(F.embedding(on_device(ids), leaf), leaf).backward(on_device(g))
    of_rows = (g @ w).double()  # a bfloat16 activation gradient
    expected = g.double().t() @ w[ids].double()
    expected.index_add_(0, ids, of_rows)
    assert error(leaf.grad, expected) <= 1e-3
    assert leaf.grad.dtype == f32


@fails_on_stock
def test_under_autocast():
    check(PRODUCTS["linear in 3-D with bias"], context=lambda: torch.autocast("xla", dtype=bf16))
    check(EINSUMS["bi,oi->bo"], context=lambda: torch.autocast("xla", dtype=bf16))


@fails_on_stock
def test_grad_returns_float32_and_activations_stay_narrow():
    x, w, g = numbers(16, 8), numbers(6, 8), numbers(16, 6)
    leaf, device_x = wide(w), narrow(x)
    of_x, of_w = torch.autograd.grad(F.linear(device_x, leaf), (device_x, leaf), on_device(g))
    assert (of_x.dtype, of_w.dtype) == (bf16, f32)
    assert error(of_w, g.double().t() @ x.double()) <= 1e-6


@fails_on_stock
def test_float64_is_made_of_a_float32_dot():
    x, w, g = numbers(16, 8), numbers(6, 8), numbers(16, 6)
    leaf = narrow(w)
    leaf.grad_dtype = f64
    F.linear(on_device(x), leaf).backward(on_device(g))
    assert leaf.grad.dtype == f64
    assert error(leaf.grad, g.double().t() @ x.double()) <= 1e-6


# ---- double backward


@fails_on_stock
@pytest.mark.parametrize("case", [PRODUCTS["linear"], CONVOLUTIONS["conv2d"]], ids=["linear", "conv2d"])
def test_double_backward(case):
    function, shape, weight_shape = case
    x, w = numbers(*shape), numbers(*weight_shape)
    leaf, device_x = wide(w), narrow(x)
    output = function(device_x, leaf)
    g, v = numbers(*output.shape), numbers(*weight_shape, dtype=f32, seed=3)
    upstream = narrow(g)
    (grad,) = torch.autograd.grad(output, leaf, upstream, create_graph=True)
    assert grad.dtype == f32
    (grad * on_device(v)).sum().backward()
    x64, w64, g64 = (t.double().requires_grad_() for t in (x, w, g))
    (grad64,) = torch.autograd.grad(function(x64, w64), w64, g64, create_graph=True)
    (grad64 * v.double()).sum().backward()
    assert error(grad, grad64) <= 1e-6
    assert device_x.grad.dtype == upstream.grad.dtype == bf16
    assert error(device_x.grad, x64.grad) <= 5e-3
    assert error(upstream.grad, g64.grad) <= 5e-3


# ---- compiled autograd, of graphs that were made eagerly


def compiled_backward(backend):
    return torch._dynamo.compiled_autograd._enable(functools.partial(torch.compile, backend=backend))


@pytest.fixture
def captures():
    """How many backward graphs compiled autograd has made in this test."""
    torch._dynamo.reset()
    torch._dynamo.compiled_autograd.reset()
    counters.clear()
    return lambda: counters["compiled_autograd"]["captures"]


BACKENDS = pytest.mark.parametrize("backend", ["eager", "openxla"])

COMPILED = {
    **{
        name: PRODUCTS[name]
        for name in ("linear", "linear in 3-D with bias", "mv", "addmm", "baddbmm", "chunk", "twice")
    },
    **{name: CONVOLUTIONS[name] for name in ("conv2d with bias", "conv_transpose2d")},
    **{equation: EINSUMS[equation] for equation in ("bsi,ihd->bshd", "bei,eio->beo")},
    "batch_norm": NORMS["batch_norm"],
}


@fails_on_stock
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_backward(name, captures):
    """One graph for the first gradient and one for those that are added to it; the others find that one."""
    check(COMPILED[name], steps=4, backward=functools.partial(compiled_backward, "eager"))
    assert captures() == 2


@fails_on_stock
@pytest.mark.parametrize("name", ["linear", "addmm", "conv2d with bias", "bsi,ihd->bshd"])
def test_compiled_backward_by_openxla(name, captures):
    """All of it is in the compiled graph. On stock too, that takes no sizes, which view and chunk would put there."""
    leaves = check(COMPILED[name], steps=3, backward=functools.partial(compiled_backward, "openxla"))
    assert captures() == 2
    if name == "linear":
        assert "xla::cast" not in ir(leaves[0].grad)


@fails_on_stock
@BACKENDS
def test_compiled_backward_of_an_embedding(backend, captures):
    w, leaf, expected = numbers(10, 4), wide(numbers(10, 4)), torch.zeros(10, 4, dtype=f64)
    for seed in range(4):
        ids, g = torch.arange(24).mul(seed + 1).remainder(7).view(4, 6), numbers(4, 6, 4, seed=seed)
        output = F.embedding(on_device(ids), leaf, padding_idx=3)
        with compiled_backward(backend):
            output.backward(on_device(g))
        expected += in_float64(lambda weight, ids=ids: F.embedding(ids, weight, padding_idx=3), [w], g)[0]
    assert leaf.grad.dtype == f32
    assert error(leaf.grad, expected) <= 1e-6
    assert captures() == 2


@fails_on_stock
def test_compiled_backward_of_a_norm(captures):
    """It has the same bfloat16 rounding in the forward pass as eagerly, so the same gradients."""
    function, shape, *weights = NORMS["layer_norm"]
    grads = []
    for backward in (contextlib.nullcontext, functools.partial(compiled_backward, "eager")):
        leaves, _, _ = accumulate(function, shape, *weights, backward=backward)
        grads.append([leaf.grad.cpu() for leaf in leaves])
    assert {grad.dtype for grad in grads[1]} == {f32}
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)
    assert captures() == 2


@fails_on_stock
def test_compiled_backward_asks_when_the_gradient_arrives(captures):
    """The graph of a float32 gradient is not that of a bfloat16 one, though the nodes are the same."""
    x, g = on_device(numbers(16, 8)), on_device(numbers(16, 6))
    for dtype in (f32, bf16, f32):
        leaf = wide(numbers(6, 8))
        output = F.linear(x, leaf)
        leaf.grad_dtype = dtype
        with compiled_backward("eager"):
            output.backward(g)
        assert leaf.grad.dtype == dtype
    assert captures() == 2


@fails_on_stock
def test_compiled_backward_with_other_constants(captures):
    """What is no tensor is in the key of the cache."""
    x, g = numbers(16, 8), numbers(16, 6)
    for alpha in (1, 2, 3.5):
        leaf = wide(numbers(8, 6))
        output = torch.addmm(on_device(numbers(6)), on_device(x), leaf, alpha=alpha)
        with compiled_backward("eager"):
            output.backward(on_device(g))
        assert error(leaf.grad, alpha * (x.double().t() @ g.double())) <= 1e-6
    assert captures() == 3


@passes_on_stock
def test_compiled_backward_frees_what_was_saved():
    output = F.linear(on_device(numbers(16, 8)), wide(numbers(6, 8))).sum()
    with compiled_backward("eager"):
        output.backward(retain_graph=True)
        output.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            output.backward()


# ---- views that are looked at


@fails_on_stock
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_on_a_view_sees_the_views_dtype(when):
    x, w, g = numbers(16, 8), numbers(6, 8), numbers(16, 6)
    leaf, seen = wide(w), []
    leaf.register_hook(lambda grad: seen.append(grad.dtype))
    view = leaf.t()
    if when == "before":
        view.register_hook(lambda grad: seen.append(grad.dtype))
    output = on_device(x) @ view
    if when == "after":
        view.register_hook(lambda grad: seen.append(grad.dtype))
    output.backward(on_device(g))
    assert seen == [bf16, f32]
    assert leaf.grad.dtype == f32
    assert error(leaf.grad, g.double().t() @ x.double()) <= 5e-3


@fails_on_stock
def test_a_view_that_retains_its_gradient():
    leaf = wide(numbers(6, 8))
    view = leaf.t()
    view.retain_grad()
    (on_device(numbers(16, 8)) @ view).backward(on_device(numbers(16, 6)))
    assert (view.grad.dtype, leaf.grad.dtype) == (bf16, f32)


@pytest.mark.parametrize(
    ("dtype", "found"),
    [
        pytest.param(bf16, bf16, marks=passes_on_stock),
        pytest.param(None, bf16, marks=passes_on_stock),
        pytest.param(f32, f32, marks=fails_on_stock),
    ],
)
def test_grad_dtype_counts_as_it_is_when_the_gradient_arrives(dtype, found):
    leaf = wide(numbers(6, 8))
    output = F.linear(on_device(numbers(16, 8)), leaf)
    leaf.grad_dtype = dtype
    output.backward(on_device(numbers(16, 6)))
    assert leaf.grad.dtype == found


# ---- what is saved


@pytest.mark.parametrize("make", [wide, narrow])
class TestSaved:
    pytestmark = passes_on_stock

    def test_a_change_in_place_is_an_error(self, make):
        leaf, x = make(numbers(6, 8)), on_device(numbers(16, 8))
        output = F.linear(x, leaf)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.backward(on_device(numbers(16, 6)))

    def test_a_second_backward_needs_retain_graph(self, make):
        leaf = make(numbers(6, 8))
        output = F.linear(narrow(numbers(16, 8)), leaf)
        output.backward(on_device(numbers(16, 6)), retain_graph=True)
        output.backward(on_device(numbers(16, 6)))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            output.backward(on_device(numbers(16, 6)))

    def test_hooks_see_what_stock_saves(self, make):
        leaf, x, packed = make(numbers(6, 8)), on_device(numbers(16, 8)), []

        def pack(tensor):
            packed.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            F.linear(x, leaf).backward(on_device(numbers(16, 6)))
        assert packed == [(16, 8)]  # x needs no gradient, so the weight is not kept


# ---- where it does not apply


def step(dtype=bf16):
    model = torch.nn.Sequential(
        torch.nn.Conv1d(4, 4, 3, padding=1),
        torch.nn.Linear(8, 8),
        torch.nn.LayerNorm(8),
        torch.nn.BatchNorm1d(4),
        torch.nn.Linear(8, 6),
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model = model.to(dtype).to(DEVICE)
    x = on_device(numbers(2, 4, 8, dtype=dtype))
    output = model(x)
    torch.einsum("bci,oi->bco", output, model[4].weight.t()).float().sum().backward()
    names = graph_of(output)
    return names, ir(*(p.grad for p in model.parameters()))


@passes_on_stock
@pytest.mark.parametrize("dtype", [bf16, f32])
def test_weights_without_a_grad_dtype_have_stocks_graph(dtype):
    names, text = step(dtype)
    bystander = wide(numbers(4))
    assert step(dtype) == (names, text)
    assert not any("Wide" in name for name in names)
    del bystander


@passes_on_stock
def test_other_devices_are_untouched():
    leaf = numbers(6, 8).requires_grad_()
    leaf.grad_dtype = f32
    assert F.linear(numbers(16, 8), leaf).grad_fn.name() == "MmBackward0"


@passes_on_stock
def test_no_graph_no_node():
    leaf = wide(numbers(6, 8))
    with torch.no_grad():
        assert F.linear(on_device(numbers(16, 8)), leaf).grad_fn is None


@passes_on_stock
def test_forward_mode_is_stocks():
    x, w = numbers(16, 8), numbers(6, 8)
    leaf, device_x = wide(w), on_device(x)
    with forward_ad.dual_level():
        output = F.linear(forward_ad.make_dual(device_x, device_x), leaf)
        tangent = forward_ad.unpack_dual(output).tangent
    assert error(tangent, x.double() @ w.double().t()) <= 5e-3


@passes_on_stock
def test_functorch():
    x, w = numbers(16, 8), numbers(6, 8)
    leaf, device_x = wide(w), on_device(x)
    torch.func.vmap(lambda row: F.linear(row, leaf))(device_x).backward(on_device(numbers(16, 6)))
    assert leaf.grad is not None
    grad = torch.func.grad(lambda weight: F.linear(device_x, weight).float().sum())(leaf)
    assert error(grad, x.double().sum(0).expand(6, 8)) <= 5e-3


@fails_on_stock
def test_batched_gradients():
    x, w, g = numbers(16, 8), numbers(6, 8), numbers(3, 16, 6)
    leaf = wide(w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap has no rule for castoff's operators and loops
        (grads,) = torch.autograd.grad(F.linear(on_device(x), leaf), leaf, on_device(g), is_grads_batched=True)
    assert grads.dtype == f32
    assert error(grads, g.double().mT @ x.double()) <= 1e-6


@fails_on_stock
def test_threads():
    x, w, g = numbers(16, 8), numbers(6, 8), numbers(16, 6)
    expected = 8 * (g.double().t() @ x.double())
    leaves = [wide(w) for _ in range(4)]
    device_x, device_g = on_device(x), on_device(g)

    def train(leaf):
        for _ in range(8):
            F.linear(device_x, leaf).backward(device_g)

    threads = [threading.Thread(target=train, args=(leaf,)) for leaf in leaves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(error(leaf.grad, expected) for leaf in leaves) <= 1e-6


@fails_on_stock
@pytest.mark.parametrize("topics", ["wide-weight-grad", "matmul-out-dtype"])
@pytest.mark.default_pin
@pytest.mark.slow
def test_switched_off(topics):
    program = """
import torch, torch_xla
w = torch.ones(6, 8, dtype=torch.bfloat16, device="xla").requires_grad_()
w.grad_dtype = torch.float32
print(torch.nn.functional.linear(w, w).grad_fn.name(), hasattr(torch_xla, "_castoff"))
"""
    assert completed("-c", program, CASTOFF_DISABLE=topics).stdout.split() == ["MmBackward0", "True"]
