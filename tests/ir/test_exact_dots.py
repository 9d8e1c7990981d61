"""Products of exactly widened tensors as products of the narrow ones: patches/torch_xla/exact-dots."""

import pytest
import torch
import torch_xla
from expecttest import assert_expected_inline
from ir_text import hlo, ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked, run, run_tests
from small_transformer import casts
from tensors import DEVICE, bf16, f16, f32, f64, random, s8, s32
from torch.nn import functional as F

WIDE = {bf16: f32, f16: f32, s8: s32}

each_dtype = pytest.mark.parametrize("dtype", WIDE, ids=str)


def data(*shape, dtype=bf16, seed=0):
    """A tensor on the CPU and the same one on XLA, as device data."""
    cpu = random(*shape, dtype=f32, seed=seed)
    cpu = cpu.mul(40).round().to(dtype) if dtype in (s8, s32) else cpu.to(dtype)
    return cpu, cpu.to(DEVICE)


def factors(*sizes, dtype=bf16):
    """Two tensors that something multiplies: on the CPU, and the same on XLA."""
    pairs = [data(*size, dtype=dtype, seed=seed) for seed, size in enumerate(sizes)]
    return tuple(zip(*pairs, strict=True))


def is_native(*tensors):
    """Whether their pending IR has wide products of narrow tensors, and none other and no cast."""
    text = ir(*tensors)
    return "xla::dot_general" in text and not any(op in text for op in ("xla::cast", "matmul", "::mm", "einsum"))


# ---- the graph


@fails_on_stock
def test_matmul():
    _, (x, w) = factors((4, 6), (6, 5))
    y = x.float() @ w.float()
    ir(y).expect("""\
%0 = bf16[6,5] xla::device_data()
%1 = bf16[4,6] xla::device_data()
%2 = f32[4,5] xla::dot_general(%1, %0)
return %2
""")
    hlo(y).expect("""\
%0 = bf16[4,6] parameter(1)
%1 = bf16[6,5] parameter(0)
%2 = f32[4,5] dot(%0, %1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
ROOT %3 = (f32[4,5]) tuple(%2)
""")


@fails_on_stock
def test_linear_with_a_bias():
    _, (x, w) = factors((4, 6), (5, 6))
    _, b = data(5, dtype=f32, seed=2)
    ir(F.linear(x.float(), w.float(), b)).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[5] xla::device_data()
%2 = bf16[5,6] xla::device_data()
%3 = bf16[6,5] aten::permute(%2)
%4 = bf16[4,6] xla::device_data()
%5 = f32[4,5] xla::dot_general(%4, %3)
%6 = f32[4,5] aten::add(%5, %1, %0)
return %6
""")


@fails_on_stock
def test_backward():
    """An island of float32: the gradient that arrives is bfloat16, and all three products are of bfloat16 tensors."""
    _, (x, w) = factors((4, 6), (5, 6))
    x.requires_grad_()
    w.requires_grad_()
    y = F.linear(x.float(), w.float()).to(bf16)
    y.backward(data(4, 5, seed=2)[1])
    ir(y, x.grad, w.grad).expect("""\
%0 = bf16[5,6] xla::device_data()
%1 = bf16[6,5] aten::permute(%0)
%2 = bf16[4,6] xla::device_data()
%3 = f32[4,5] xla::dot_general(%2, %1)
%4 = bf16[4,5] xla::cast(%3)
%5 = bf16[6,5] aten::permute(%0)
%6 = bf16[5,6] aten::permute(%5)
%7 = bf16[4,5] xla::device_data()
%8 = f32[4,6] xla::dot_general(%7, %6)
%9 = bf16[4,6] xla::cast(%8)
%10 = bf16[6,4] aten::permute(%2)
%11 = f32[6,5] xla::dot_general(%10, %7)
%12 = f32[5,6] aten::permute(%11)
%13 = bf16[5,6] xla::cast(%12)
return %4, %9, %13
""")


# ---- forms: of two narrow factors and what widens them, after or before the views

A, B, C = 4, 6, 5
FORMS = {
    "mm": ((A, B), (B, C), lambda x, w, wide: torch.mm(wide(x), wide(w))),
    "@ of a transpose": ((A, B), (C, B), lambda x, w, wide: wide(x) @ wide(w).t()),
    "@ of a transpose before": ((A, B), (C, B), lambda x, w, wide: wide(x) @ wide(w.t())),
    "both transposed": ((B, A), (C, B), lambda x, w, wide: wide(x).t() @ wide(w).t()),
    "linear": ((A, B), (C, B), lambda x, w, wide: F.linear(wide(x), wide(w))),
    "linear of 3": ((2, A, B), (C, B), lambda x, w, wide: F.linear(wide(x), wide(w))),
    "linear of 4": ((2, 3, A, B), (C, B), lambda x, w, wide: F.linear(wide(x), wide(w))),
    "linear of a vector": ((B,), (C, B), lambda x, w, wide: F.linear(wide(x), wide(w))),
    "bmm": ((3, A, B), (3, B, C), lambda x, w, wide: torch.bmm(wide(x), wide(w))),
    "bmm, transposed": ((3, A, B), (3, C, B), lambda x, w, wide: wide(x) @ wide(w).mT),
    "batches": ((2, 3, A, B), (2, 3, B, C), lambda x, w, wide: wide(x) @ wide(w)),
    "batches that expand": ((2, 3, A, B), (3, B, C), lambda x, w, wide: wide(x) @ wide(w)),
    "one matrix for all": ((B, C), (3, C, A), lambda x, w, wide: wide(x) @ wide(w)),
    "expand": ((A, B), (3, B, C), lambda x, w, wide: wide(x)[None].expand(3, A, B) @ wide(w)),
    "mv": ((A, B), (B,), lambda x, w, wide: wide(x) @ wide(w)),
    "vector @ matrix": ((B,), (B, C), lambda x, w, wide: wide(x) @ wide(w)),
    "dot": ((B,), (B,), lambda x, w, wide: torch.dot(wide(x), wide(w))),
    "slices": ((A + 2, B), (B, 2 * C), lambda x, w, wide: wide(x)[1:-1] @ wide(w)[:, ::2]),
    "reshape": ((2 * A * B,), (2, B, C), lambda x, w, wide: wide(x).reshape(2, A, B) @ wide(w)),
    "reshape of a transpose": ((B, A), (B, C), lambda x, w, wide: wide(x).t().reshape(A, B) @ wide(w)),
    "select, unsqueeze": ((2, B), (3, B, C), lambda x, w, wide: wide(x)[1].unsqueeze(0) @ wide(w)[2]),
    "split, chunk": ((3 * A, B), (B, 2 * C), lambda x, w, wide: wide(x).split(A)[2] @ wide(w).chunk(2, 1)[1]),
    "flip": ((A, B), (B, C), lambda x, w, wide: wide(x).flip(1) @ wide(w)),
    "einsum": ((A, B), (C, B), lambda x, w, wide: torch.einsum("ab,cb->ac", wide(x), wide(w))),
    "einsum of batches": (
        (2, A, 3, B),
        (2, C, 3, B),
        lambda x, w, wide: torch.einsum("bqhd,bkhd->bhqk", wide(x), wide(w)),
    ),
    "einsum, ellipsis": ((2, A, B), (C, B), lambda x, w, wide: torch.einsum("...b,cb->...c", wide(x), wide(w))),
    "einsum, two sums": ((A, 2, B), (2, B, C), lambda x, w, wide: torch.einsum("axb,xbc->ac", wide(x), wide(w))),
    "chain of casts": ((A, B), (B, C), lambda x, w, wide: wide(wide(x)).clone() @ wide(w).contiguous()),
    "type_as": ((A, B), (B, C), lambda x, w, wide: wide(x) @ w.type_as(wide(x))),
    "copy_": ((A, B), (B, C), lambda x, w, wide: torch.zeros_like(wide(x)).copy_(x) @ wide(w)),
    "the same twice": ((B, B), (B, B), lambda x, w, wide: wide(x) @ wide(x).t()),
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def oracle(dtype):
    return torch.int64 if dtype == s8 else f64


@passes_on_stock
def test_an_einsum_may_be_the_first_operator_of_a_process():
    """It asks for the IR above functionalization."""
    program = """
import torch, torch_xla
x, w = (torch.ones(n, 6, dtype=torch.bfloat16).to("xla") for n in (3, 4))
print(torch.einsum("ab,cb->ac", x.float(), w.float()).sum().item())
"""
    assert forked("-c", program).stdout.split() == ["72.0"]


@fails_on_stock
@each_dtype
@each_form
def test_each_form(form, dtype):
    """One product without casts, of stock's value: the same sums where they have the same order."""
    *sizes, product = form
    cpu, (x, w) = factors(*sizes, dtype=dtype)
    y = product(x, w, lambda t: t.to(WIDE[dtype]))
    assert is_native(y)
    assert y.dtype == WIDE[dtype]
    wide = [t.to(WIDE[dtype]) for t in (x, w)]
    torch_xla.sync()
    stock = product(*wide, lambda t: t)
    assert "xla::dot_general" not in ir(stock)
    exact = product(*(t.to(oracle(dtype)) for t in cpu), lambda t: t.to(oracle(dtype)))
    assert y.shape == exact.shape
    errors = [(t.cpu().to(oracle(dtype)) - exact).abs().max().item() for t in (y, stock)]
    assert errors[0] <= 1.05 * errors[1] + 1e-6


GRADIENTS = [name for name in FORMS if name not in ("mv", "vector @ matrix", "dot", "linear of a vector")]


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
@pytest.mark.parametrize("form", GRADIENTS)
def test_gradients(form, dtype):
    """Of a result that is rounded, all products are native; the gradients are stock's."""
    *sizes, product = FORMS[form]
    cpu, _ = factors(*sizes, dtype=dtype)

    def step(tensors, wide, narrow):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        y = narrow(product(*leaves, wide))
        grad = random(*y.shape, dtype=dtype, seed=3).to(y)
        used = [t for t in leaves if t.requires_grad]
        return [y, *torch.autograd.grad(y, used, grad, allow_unused=True)]

    found = [t for t in step([t.to(DEVICE) for t in cpu], lambda t: t.float(), lambda t: t.to(dtype)) if t is not None]
    text = ir(*found)
    assert text.count("xla::dot_general") >= 2
    assert not any(op in text for op in ("matmul", "::mm", "einsum"))
    exact = [t for t in step([t.double() for t in cpu], lambda t: t, lambda t: t) if t is not None]
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.cpu().double(), b, rtol=2e-2, atol=2e-2 * b.abs().max().item())


@fails_on_stock
def test_gradients_of_gradients():
    _, (x, w) = factors((4, 6), (6, 5))
    x.requires_grad_()
    y = (x.float() @ w.float()).square().sum()
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(grad.float().sum(), x)
    assert "xla::dot_general" in ir(second)
    cpu = x.detach().cpu().double().requires_grad_()
    (grad,) = torch.autograd.grad((cpu @ w.cpu().double()).square().sum(), cpu, create_graph=True)
    (expected,) = torch.autograd.grad(grad.sum(), cpu)
    torch.testing.assert_close(second.cpu().double(), expected, rtol=2e-2, atol=2e-2)


# ---- sums with another tensor


@fails_on_stock
@pytest.mark.parametrize(
    ("form", "sizes", "addend"),
    [
        (torch.addmm, ((4, 6), (6, 5)), (5,)),
        (torch.addmm, ((4, 6), (6, 5)), (4, 5)),
        (torch.addmm, ((4, 6), (6, 5)), ()),
        (torch.baddbmm, ((3, 4, 6), (3, 6, 5)), (3, 4, 5)),
        (torch.baddbmm, ((3, 4, 6), (3, 6, 5)), (1, 5)),
    ],
)
def test_sums(form, sizes, addend):
    cpu, (x, w) = factors(*sizes)
    cpu_b, b = data(*addend, dtype=f32, seed=2)
    y = form(b, x.float(), w.float())
    assert is_native(y)
    torch.testing.assert_close(y.cpu(), form(cpu_b, *(t.float() for t in cpu)))


@passes_on_stock
def test_other_sums_are_stocks():
    cpu, (x, w) = factors((4, 6), (6, 5))
    cpu_b, b = data(5, dtype=f32, seed=2)
    y = torch.addmm(b, x.float(), w.float(), beta=0.5, alpha=2)
    torch.testing.assert_close(y.cpu(), torch.addmm(cpu_b, *(t.float() for t in cpu), beta=0.5, alpha=2))
    z = torch.addmm(b, x.float(), w.float(), beta=0)
    torch.testing.assert_close(z.cpu(), torch.addmm(cpu_b, *(t.float() for t in cpu), beta=0))


# ---- convolutions

CONVOLUTIONS = {
    "conv1d": (F.conv1d, {"padding": "same"}, (2, 4, 9), (6, 4, 3)),
    "conv1d without a batch": (F.conv1d, {}, (4, 9), (6, 4, 3)),
    "conv2d": (F.conv2d, {}, (2, 4, 9, 9), (6, 4, 3, 3)),
    "conv2d with a bias": (F.conv2d, {"stride": 2, "padding": 1}, (2, 4, 9, 9), (6, 4, 3, 3), (6,)),
    "conv2d of groups": (F.conv2d, {"groups": 2, "stride": 3, "dilation": 2}, (2, 4, 19, 19), (6, 2, 3, 3)),
    "conv3d": (F.conv3d, {"stride": 2}, (2, 4, 5, 5, 5), (6, 4, 3, 3, 3)),
    "conv2d of a view": (lambda x, w: F.conv2d(x.mT[:, :4], w), {}, (2, 6, 9, 7), (6, 4, 3, 3)),
    "transposed": (F.conv_transpose2d, {"stride": 2, "padding": 1, "output_padding": 1}, (2, 4, 5, 5), (4, 6, 3, 3)),
    "transposed, of groups": (F.conv_transpose2d, {"stride": 3, "groups": 2}, (2, 4, 5, 5), (4, 3, 3, 3), (6,)),
}


@fails_on_stock
def test_convolution():
    _, (x, w) = factors((2, 4, 9, 9), (6, 4, 3, 3))
    x.requires_grad_()
    w.requires_grad_()
    y = F.conv2d(x.float(), w.float()).to(bf16)
    y.backward(data(2, 6, 7, 7, seed=2)[1])
    ir(y, x.grad, w.grad).expect("""\
%0 = bf16[6,4,3,3] xla::device_data()
%1 = bf16[2,4,9,9] xla::device_data()
%2 = f32[2,6,7,7] xla::convolution(%1, %0)
%3 = bf16[2,6,7,7] xla::cast(%2)
%4 = bf16[2,6,7,7] xla::device_data()
%5 = f32[2,4,9,9] xla::convolution(%4, %0)
%6 = bf16[2,4,9,9] xla::cast(%5)
%7 = f32[6,4,3,3] xla::convolution(%1, %4)
%8 = bf16[6,4,3,3] xla::cast(%7)
return %3, %6, %8
""")


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
@pytest.mark.parametrize("form", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_each_convolution(form, dtype):
    """Its result and all gradients are convolutions of narrow tensors, which add up in float32."""
    function, options, *sizes = form
    cpu, xla = factors(*sizes, dtype=dtype)

    def step(tensors, wide):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        y = function(*(wide(t) for t in leaves), **options)
        grad = random(*y.shape, dtype=dtype, seed=3)
        return [y, *torch.autograd.grad(y, leaves, wide(grad.to(y.device)))]

    found = step(xla, lambda t: t.float())
    text = ir(*found)
    assert text.count("= f32") >= 3 and text.count("xla::convolution(") == 3
    assert "convolution_overrideable" not in text and "convolution_backward" not in text
    exact = step([t.double() for t in cpu], lambda t: t.double())
    torch.testing.assert_close(found[0].cpu().double(), exact[0], rtol=1e-5, atol=1e-4)
    for a, b in zip(found[1:], exact[1:], strict=True):
        assert a.dtype == dtype and a.shape == b.shape
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-2, atol=1e-2)


OTHER_CONVOLUTIONS = {
    "bfloat16": F.conv2d,
    "float32": lambda x, w: F.conv2d(x.float().add(1), w.float().add(1)),
    "one factor wide": lambda x, w: F.conv2d(x.float().mul(3), w.float()),
    "two dtypes": lambda x, w: F.conv2d(x.float(), w.half().float()),
    "no image": lambda x, w: F.conv2d(x.float()[:0], w.float()),
    "no result": lambda x, w: F.conv_transpose2d(x.float()[..., :2], w[:4, :, :1, :1].float(), padding=(0, 1)),
}


@passes_on_stock
@pytest.mark.parametrize("form", OTHER_CONVOLUTIONS.values(), ids=OTHER_CONVOLUTIONS.keys())
def test_other_convolutions_are_stocks(form):
    cpu, (x, w) = factors((2, 4, 9, 9), (6, 4, 3, 3))
    y = form(x, w)
    assert "xla::convolution(" not in ir(y)
    torch.testing.assert_close(y.cpu().double(), form(*cpu).double(), rtol=3e-2, atol=3e-2)


@fails_on_stock
def test_a_convolution_whose_gradient_is_wide():
    """Its gradients are stock's, of float32 tensors."""
    _, (x, w) = factors((2, 4, 9, 9), (6, 4, 3, 3))
    w.requires_grad_()
    y = F.conv2d(x.float(), w.float())
    assert "xla::convolution(" in ir(y)
    (grad,) = torch.autograd.grad(y.square().sum(), w)
    wide = w.detach().cpu().double().requires_grad_()
    (exact,) = torch.autograd.grad(F.conv2d(x.cpu().double(), wide).square().sum(), wide)
    torch.testing.assert_close(grad.cpu().double(), exact, rtol=1e-2, atol=1e-2)


# ---- what stays as in stock


OTHERS = {
    "float32": lambda x, w: x.float().add(1) @ w.float().add(1),
    "bfloat16": lambda x, w: x @ w,
    "one factor wide": lambda x, w: x.float().mul(3) @ w.float(),
    "two dtypes": lambda x, w: x.float() @ w.half().float(),
    "rounded first": lambda x, w: x.float().mul(3).to(bf16).to(f64).float() @ w.float(),
    "float64": lambda x, w: x.double() @ w.double(),
    "from int16": lambda x, w: x.to(torch.int16).float() @ w.to(torch.int16).float(),
    "from float8": lambda x, w: x.to(torch.float8_e5m2).float() @ w.to(torch.float8_e5m2).float(),
    "written to": lambda x, w: x.float().add_(1) @ w.float(),
    "indexed": lambda x, w: x.float()[torch.tensor([1, 0], device=x.device)] @ w.float(),
    "einsum of three": lambda x, w: torch.einsum("ab,bc,cd->ad", x.float(), w.float(), w.float().t()),
    "nothing to sum": lambda x, w: x.float()[:, :0] @ w.float()[:0],
    "no row": lambda x, w: x.float()[:0] @ w.float(),
}


@passes_on_stock
@pytest.mark.parametrize("form", OTHERS.values(), ids=OTHERS.keys())
def test_other_products_are_stocks(form, request):
    cpu, (x, w) = factors((4, 6), (6, 5))
    y = form(x, w)
    if "three" not in request.node.callspec.id:  # its second product may be of narrow tensors
        assert "xla::dot_general" not in ir(y)
    torch.testing.assert_close(y.cpu().double(), form(*cpu).double(), rtol=3e-2, atol=3e-2)


@pytest.mark.since("2.9", "a product that does not end the process if the shapes do not fit")
@passes_on_stock
def test_errors_are_stocks():
    _, (x, w) = factors((4, 6), (5, 6))
    with pytest.raises(RuntimeError):
        (x.float() @ w.float()).cpu()
    torch_xla._XLAC._clear_pending_irs(str(DEVICE))


@fails_on_stock
def test_a_wide_tensor_that_is_used_stays():
    cpu, (x, w) = factors((4, 6), (6, 5))
    wide = x.float()
    y, z = wide @ w.float(), wide + 1
    assert "xla::dot_general" in ir(y, z)
    assert casts(y, z) == 1
    assert torch.equal(z.cpu(), cpu[0].float() + 1)


@fails_on_stock
def test_a_later_write_does_not_reach_the_product():
    cpu, (x, w) = factors((4, 6), (6, 5))
    y = x.float() @ w.float()
    assert is_native(y)
    x.add_(1)
    torch.testing.assert_close(y.cpu(), cpu[0].float() @ cpu[1].float())


@passes_on_stock
def test_materialised_values():
    cpu, (x, w) = factors((4, 6), (6, 5))
    wide = x.float()
    torch_xla.sync()
    torch.testing.assert_close((wide @ w.float()).cpu(), cpu[0].float() @ cpu[1].float())


@passes_on_stock
def test_eager_mode():
    cpu, (x, w) = factors((4, 6), (6, 5))
    with torch_xla.experimental.eager_mode_context(True):
        torch.testing.assert_close((x.float() @ w.float()).cpu(), cpu[0].float() @ cpu[1].float())


# ---- under what surrounds it


@fails_on_stock
def test_an_island_in_autocast():
    _, (x, w) = factors((4, 6), (5, 6))
    with torch.autocast("xla", dtype=bf16):
        h = F.linear(x, w)
        with torch.autocast("xla", enabled=False):
            y = F.linear(h.float(), w.t().float().contiguous()[:, :5].t()[:, :5].t().contiguous()[:5, :5])
    assert casts(y) == 0
    assert ir(y).count("xla::dot_general") == 1


@fails_on_stock
@pytest.mark.parametrize("precision", ["default", "high", "highest"])
def test_precision(precision, set_matmul_precision):
    """One dot at each setting, which it carries; and the same graph is compiled for each anew."""
    cpu, (x, w) = factors((4, 6), (6, 5))
    set_matmul_precision(precision)
    y = x.float() @ w.float()
    assert is_native(y)
    text = torch_xla._XLAC._get_xla_tensors_hlo([y])
    assert (f"{{{precision},{precision}}}" in text) == (precision != "default")
    torch.testing.assert_close(y.cpu(), cpu[0].float() @ cpu[1].float())


@fails_on_stock
def test_torch_compile():
    cpu, (x, w) = factors((4, 6), (5, 6))

    @torch.compile(backend="openxla")
    def function(x, w):
        return F.linear(x.float(), w.float()), x.float()

    for _ in range(2):
        y, wide = function(x, w)
        torch.testing.assert_close(y.cpu(), F.linear(cpu[0].float(), cpu[1].float()))
        assert torch.equal(wide.cpu(), cpu[0].float())
    assert is_native(F.linear(x.float(), w.float()))


@fails_on_stock
def test_the_cache_of_graphs():
    """Programs that differ in which tensor stands where, or in the dtype before the cast, have graphs of their own."""
    (cx, cw), (x, w) = factors((6, 6), (6, 6))
    hx, hw = x.half(), w.half()
    torch_xla.sync()
    for _ in range(2):
        for a, b, ca, cb in ((x, w, cx, cw), (w, x, cw, cx), (x, x, cx, cx), (hx, hw, cx, cw)):
            for form in (lambda a, b: a @ b, lambda a, b: a @ b.t(), lambda a, b: a.t() @ b):
                y = form(a.float(), b.float())
                assert is_native(y)
                torch.testing.assert_close(y.cpu(), form(ca.float(), cb.float()), rtol=2e-3, atol=2e-3)


@fails_on_stock
def test_inference_mode():
    cpu, (x, w) = factors((4, 6), (5, 6))
    with torch.inference_mode():
        y, z = F.linear(x.float(), w.float()), torch.einsum("ab,cb->ac", x.float(), w.float())
        assert is_native(y, z)
        torch.testing.assert_close(y.cpu(), F.linear(cpu[0].float(), cpu[1].float()))


@fails_on_stock
def test_float32_gradients_of_narrow_weights():
    cpu, (x, w) = factors((4, 6), (5, 6))
    w.requires_grad_()
    w.grad_dtype = f32
    grad = data(4, 5, seed=2)[1]
    F.linear(x.float(), w.float()).to(bf16).backward(grad)
    assert is_native(w.grad)
    assert w.grad.dtype == f32
    torch.testing.assert_close(w.grad.cpu(), grad.cpu().float().t() @ cpu[0].float())


# ---- in other processes

PROGRAM = """
import torch, torch_xla
from ir_text import ir
x = torch.ones(4, 6, dtype=torch.bfloat16, device=torch_xla.device())
torch_xla.sync()
y = x.float() @ x.float().t()
print("dots", ir(y).count("dot_general"), y.cpu().sum().item())
"""


@pytest.mark.default_pin
@pytest.mark.slow
def test_without_matmul_out_dtype():
    """It needs its product."""
    assert "dots 0 96.0" in run("-c", PROGRAM, CASTOFF_DISABLE="matmul-out-dtype")


@fails_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
def test_without_exact_casts():
    """It needs what reads IR, and not the kernels."""
    assert "dots 1 96.0" in run("-c", PROGRAM, CASTOFF_DISABLE="exact-casts")


@fails_on_stock
@pytest.mark.since("2.7", "XNNPACK in XLA:CPU")
@pytest.mark.default_pin
@pytest.mark.slow
def test_the_users_choice_of_xnnpack():
    for flag, expected in (("true", 0), ("false", 1)):
        assert f"dots {expected} 96.0" in run("-c", PROGRAM, XLA_FLAGS=f"--xla_cpu_use_xnnpack={flag}")


@fails_on_stock
@pytest.mark.slow
def test_functionalization_off():
    """Of tensors that are no views: those have no IR of their own then."""
    chosen = "test_matmul or test_sums or later or other_products"
    output = run_tests(__file__, "-k", chosen, XLA_DISABLE_FUNCTIONALIZATION="1")
    assert " passed" in output and "failed" not in output


SPMD = """
import numpy, torch, torch_xla, torch_xla.distributed.spmd as xs
from ir_text import ir
torch_xla.runtime.use_spmd()
device, bf16 = torch_xla.device(), torch.bfloat16
mesh = xs.Mesh(numpy.arange(4), (4,), ("x",))
cpu = [torch.randn(8, 16, generator=torch.Generator().manual_seed(i)).to(bf16) for i in range(2)]
x, w = (t.to(device) for t in cpu)
expected = cpu[0].float() @ cpu[1].float().t()
count = lambda y: (ir(y).count("dot_general"), torch.allclose(y.cpu(), expected, atol=1e-5))
h, v = ((t.to(device) + 0) for t in cpu)
print("pending values", *count(h.float() @ v.float().t()))
print("einsum", *count(torch.einsum("ab,cb->ac", h.float(), v.float())))
wide = h.float()
xs.mark_sharding(wide, mesh, (None, "x"))
print("sharded between", *count(wide @ v.float().t()))
xs.mark_sharding(x, mesh, ("x", None))
xs.mark_sharding(w, mesh, (None, "x"))
print("sharded data", *count(x.float() @ w.float().t()))
"""


@fails_on_stock
def test_spmd():
    output = forked("-c", SPMD, CPU_NUM_DEVICES="4").stdout
    assert_expected_inline(
        "".join(line + "\n" for line in output.splitlines() if line[:1].islower()),
        """\
pending values 1 True
einsum 0 True
sharded between 0 True
sharded data 0 True
""",
    )
