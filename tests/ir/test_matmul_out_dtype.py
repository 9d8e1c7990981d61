"""Matrix products on XLA that return a wider dtype than their operands': patches/torch_xla/matmul-out-dtype.

Tests marked ``fails_on_stock`` state what the topic is for; those marked ``passes_on_stock`` state what it
must leave alone. The last test runs all of them once more with functionalization off.
"""

import importlib
import os
import sys

import pytest
import torch
from compared import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_text import hlo, ir
from marks import fails_on_stock, passes_on_stock
from other_process import completed, forked, fresh, run_tests
from tensors import DEVICE, bf16, f16, f32, f64, s8, s32

FUNCTIONALIZED = os.environ.get("XLA_DISABLE_FUNCTIONALIZATION", "0") != "1"
WIDE = {bf16: f32, f16: f32, s8: s32}

HAS_OUT_DTYPE = hasattr(torch.ops.aten.mm, "dtype")
has_out_dtype = pytest.mark.since("2.8", "out_dtype= of matrix products")
narrow_dtypes = pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: str(dtype).split(".")[1])


def data(*shape, dtype=bf16, seed=0):
    """A tensor on the CPU and the same one on XLA, as device data."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        cpu = torch.randn(shape, generator=generator).to(dtype)
    else:
        cpu = torch.randint(-128, 128, shape, generator=generator).to(dtype)
    return cpu, cpu.to(DEVICE)


def zeros(*shape, dtype=f32):
    """Zeros that are device data, not a constant of the graph."""
    return torch.zeros(shape, dtype=dtype).to(DEVICE)


def error_of(call, *tensors):
    with pytest.raises(RuntimeError) as info:
        call(*tensors)
    return str(info.value).splitlines()[0]


# ---- one dot, no cast


@fails_on_stock
def test_issue_7160_as_reported():
    q_cpu, q = data(128, 512, seed=1)
    k_cpu, k = data(128, 512, seed=2)
    out = zeros(512, 512)
    result = torch.matmul(q.t(), k, out=out)
    assert result is out
    ir(out).expect("""\
%0 = bf16[128,512] xla::device_data()
%1 = bf16[128,512] xla::device_data()
%2 = bf16[512,128] aten::permute(%1)
%3 = f32[512,512] xla::dot_general(%2, %0)
return %3
""")
    hlo(out).expect("""\
%0 = bf16[128,512] parameter(1)
%1 = bf16[512,128] transpose(%0), dimensions={1,0}
%2 = bf16[128,512] parameter(0)
%3 = f32[512,512] dot(%1, %2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
ROOT %4 = (f32[512,512]) tuple(%3)
""")
    check(out, q_cpu.double().t() @ k_cpu.double())


@has_out_dtype
@fails_on_stock
def test_addmm_out_dtype_with_alpha_and_beta():
    (c, xc), (a, xa), (b, xb) = data(4, 6, dtype=f32), data(4, 8, seed=1), data(8, 6, seed=2)
    result = torch.addmm(xc, xa, xb, out_dtype=f32, beta=2, alpha=0.5)
    ir(result).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] xla::device_data()
%2 = f32[4,6] xla::device_data()
%3 = f32[4,6] aten::mul(%2, %1)
%4 = f32[] xla::device_data()
%5 = bf16[8,6] xla::device_data()
%6 = bf16[4,8] xla::device_data()
%7 = f32[4,6] xla::dot_general(%6, %5)
%8 = f32[4,6] aten::mul(%7, %4)
%9 = f32[4,6] aten::add(%8, %3, %0)
return %9
""")
    assert "convert" not in hlo(result)
    check(result, 2 * c.double() + 0.5 * (a.double() @ b.double()))


@has_out_dtype
@fails_on_stock
def test_out_dtype_with_self_in_the_operands_dtype_widens_self_only():
    (c, xc), (a, xa), (b, xb) = data(6), data(4, 8, seed=1), data(8, 6, seed=2)
    result = torch.addmm(xc, xa, xb, out_dtype=f32)
    ir(result).expect("""\
%0 = f32[] prim::Constant()
%1 = bf16[6] xla::device_data()
%2 = f32[6] xla::cast(%1)
%3 = bf16[8,6] xla::device_data()
%4 = bf16[4,8] xla::device_data()
%5 = f32[4,6] xla::dot_general(%4, %3)
%6 = f32[4,6] aten::add(%5, %2, %0)
return %6
""")
    check(result, c.double() + a.double() @ b.double())


@fails_on_stock
def test_accumulate_into_out():
    (c, xc), (a, xa), (b, xb) = (
        data(4, 6, dtype=f32),
        data(4, 8, seed=1),
        data(8, 6, seed=2),
    )
    torch.addmm(xc, xa, xb, out=xc)
    ir(xc).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[4,6] xla::device_data()
%2 = bf16[8,6] xla::device_data()
%3 = bf16[4,8] xla::device_data()
%4 = f32[4,6] xla::dot_general(%3, %2)
%5 = f32[4,6] aten::add(%4, %1, %0)
return %5
""")
    torch.addmm(xc, xa, xb, out=xc)
    check(xc, c.double() + 2 * (a.double() @ b.double()))


OUT_CALLS = {
    "mm": (torch.mm, ((4, 8), (8, 6)), (4, 6)),
    "bmm": (torch.bmm, ((3, 4, 8), (3, 8, 6)), (3, 4, 6)),
    "matmul 1d 1d": (torch.matmul, ((8,), (8,)), ()),
    "matmul 2d 1d": (torch.matmul, ((4, 8), (8,)), (4,)),
    "matmul 2d 2d": (torch.matmul, ((4, 8), (8, 6)), (4, 6)),
    "matmul 3d 1d": (torch.matmul, ((2, 4, 8), (8,)), (2, 4)),
    "matmul 3d 2d": (torch.matmul, ((2, 4, 8), (8, 6)), (2, 4, 6)),
    "matmul 2d 3d": (torch.matmul, ((4, 8), (2, 8, 6)), (2, 4, 6)),
    "matmul 3d 3d": (torch.matmul, ((2, 4, 8), (2, 8, 6)), (2, 4, 6)),
    "matmul 4d 3d": (torch.matmul, ((3, 2, 4, 8), (2, 8, 6)), (3, 2, 4, 6)),
    "linear": (torch._C._nn.linear, ((4, 8), (6, 8)), (4, 6)),
    "linear 1d": (torch._C._nn.linear, ((8,), (6, 8)), (6,)),
    "linear 3d": (torch._C._nn.linear, ((2, 4, 8), (6, 8)), (2, 4, 6)),
    "mv": (torch.mv, ((4, 8), (8,)), (4,)),
    "dot": (torch.dot, ((8,), (8,)), ()),
}


@fails_on_stock
@narrow_dtypes
@pytest.mark.parametrize("name", OUT_CALLS)
def test_wider_out_is_one_dot_without_casts(name, dtype):
    function, shapes, out_shape = OUT_CALLS[name]
    (a, xa), (b, xb) = (data(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes))
    out = zeros(*out_shape, dtype=WIDE[dtype])
    assert function(xa, xb, out=out) is out
    assert out.dtype == WIDE[dtype]
    text, lowered = ir(out), hlo(out)
    assert text.count("xla::dot_general") == 1 and "mm(" not in text and "matmul(" not in text
    assert "xla::cast" not in text and "convert" not in lowered
    assert lowered.count(" dot(") == 1
    check(out, function(a.double(), b.double()))


@has_out_dtype
@fails_on_stock
@narrow_dtypes
@pytest.mark.parametrize("form", ("out_dtype", "dtype_out", "out"))
@pytest.mark.parametrize("name", ("mm", "bmm", "addmm", "baddbmm"))
def test_every_form_gives_the_same_ir_and_the_same_numbers(name, form, dtype):
    batch = (3,) if "bmm" in name else ()
    wide = WIDE[dtype]
    (a, xa), (b, xb) = (
        data(*batch, 4, 8, dtype=dtype, seed=1),
        data(*batch, 8, 6, dtype=dtype, seed=2),
    )
    c, xc = data(*batch, 4, 6, dtype=s8, seed=3)
    xc = c.to(wide).to(DEVICE)
    arguments = (xc, xa, xb) if "add" in name else (xa, xb)
    scalars = {"beta": 2, "alpha": 3} if len(arguments) == 3 else {}
    out = zeros(*batch, 4, 6, dtype=wide)
    keywords = {
        "out_dtype": {"out_dtype": wide},
        "dtype_out": {"out_dtype": wide, "out": out},
        "out": {"out": out},
    }[form]
    result = getattr(torch, name)(*arguments, **scalars, **keywords)
    assert form == "out_dtype" or result is out
    plain = getattr(torch, name)(*arguments, **scalars, out_dtype=wide)
    assert ir(result) == ir(plain)
    assert "xla::cast" not in ir(result) and "convert" not in hlo(result)
    product = a.double() @ b.double()
    check(result, 2 * c.double() + 3 * product if scalars else product)


@fails_on_stock
@pytest.mark.parametrize("bias_dtype", (None, f32, bf16))
def test_linear_with_bias(bias_dtype):
    (x, xx), (w, xw) = data(2, 4, 8, seed=1), data(6, 8, seed=2)
    b, xb = (None, None) if bias_dtype is None else data(6, dtype=bias_dtype, seed=3)
    out = torch._C._nn.linear(xx, xw, xb, out=zeros(2, 4, 6))
    assert ir(out).count("xla::dot_general") == 1
    assert ir(out).count("xla::cast") == (bias_dtype == bf16)
    expected = x.double() @ w.double().t()
    check(out, expected if b is None else expected + b.double())


@fails_on_stock
@pytest.mark.parametrize("left", (False, True))
@pytest.mark.parametrize("right", (False, True))
def test_transposed_views_as_operands(left, right):
    a, xa = data(*(8, 4) if left else (4, 8), seed=1)
    b, xb = data(*(6, 8) if right else (8, 6), seed=2)
    if left:
        a, xa = a.t(), xa.t()
    if right:
        b, xb = b.t(), xb.t()
    out = torch.mm(xa, xb, out=zeros(4, 6))
    assert ir(out).count("xla::dot_general") == 1 and "xla::cast" not in ir(out)
    check(out, a.double() @ b.double())


@fails_on_stock
def test_sliced_and_expanded_views_as_operands():
    (a, xa), (b, xb) = data(9, 16, seed=1), data(8, 1, seed=2)
    out = torch.mm(xa[1:9:2, 3:11], xb.expand(8, 6), out=zeros(4, 6))
    assert "xla::cast" not in ir(out)
    check(out, a[1:9:2, 3:11].double() @ b.expand(8, 6).double())


# ---- out=: size, views, aliases


@fails_on_stock
@pytest.mark.parametrize("shape", ((0,), (3, 3), (4, 5), (1, 4, 6)))
def test_out_of_another_size_is_resized_as_stock_resizes_it(shape):
    (a, xa), (b, xb) = data(4, 8, seed=1), data(8, 6, seed=2)
    out = zeros(*shape)
    torch.mm(xa, xb, out=out)
    same = zeros(*shape)
    torch.mm(xa.float(), xb.float(), out=same)
    assert out.shape == same.shape == (4, 6)
    assert "xla::dot_general" in ir(out) and "xla::cast" not in ir(out)
    check(out, a.double() @ b.double())


@fails_on_stock
def test_rows_of_a_larger_tensor_as_out():
    (a, xa), (b, xb) = data(4, 8, seed=1), data(8, 6, seed=2)
    whole, xwhole = data(8, 6, dtype=f32, seed=3)
    torch.mm(xa, xb, out=xwhole[2:6])
    assert "xla::cast" not in ir(xwhole)
    expected = whole.double()
    expected[2:6] = a.double() @ b.double()
    check(xwhole, expected)


@fails_on_stock
def test_transposed_view_as_out():
    (a, xa), (b, xb) = data(4, 8, seed=1), data(8, 6, seed=2)
    whole = zeros(6, 4)
    torch.mm(xa, xb, out=whole.t())
    ir(whole).expect("""\
%0 = bf16[8,6] xla::device_data()
%1 = bf16[4,8] xla::device_data()
%2 = f32[4,6] xla::dot_general(%1, %0)
%3 = f32[6,4] aten::permute(%2)
return %3
""")
    check(whole, (a.double() @ b.double()).t())


WIDER = [
    *((dtype, f64) for dtype in (bf16, f16, f32)),
    *((s8, dtype) for dtype in (f32, f64, bf16, torch.int16, torch.int64)),
    (torch.uint8, s32),
    (torch.int16, f32),
    (s32, torch.int64),
]
"""Dtypes of factors, and of an out= in which their product is neither rounded first nor wraps."""


@fails_on_stock
@pytest.mark.parametrize(("dtype", "out_dtype"), WIDER, ids=str)
@pytest.mark.parametrize("name", ("mm", "addmm", "bmm", "mv"))
def test_every_wider_out(name, dtype, out_dtype):
    """Of integers in a float dtype: exact in 32 bits, or 64, and rounded once."""
    shapes = {"mm": ((4, 40), (40, 6)), "bmm": ((2, 4, 40), (2, 40, 6)), "mv": ((4, 40), (40,))}
    (a, xa), (b, xb) = (data(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes.get(name, shapes["mm"])))
    if dtype is s32:
        a, xa = a << 24, xa << 24
    exact = a.double() @ b.double()
    out = torch.zeros(exact.shape, dtype=out_dtype).to(DEVICE)
    c, xc = data(4, 6, dtype=dtype, seed=2)
    torch.addmm(xc, xa, xb, out=out) if name == "addmm" else getattr(torch, name)(xa, xb, out=out)
    if name == "addmm":
        exact = c.double() + exact
    text = ir(out)
    assert "xla::dot_general" in text and "aten::mm" not in text
    if not out_dtype.is_floating_point:
        exact = exact.to(torch.int64).to(out_dtype).double()  # int16 wraps, as integers do
        assert torch.equal(out.cpu().double(), exact)
        return
    tolerance = 4 * torch.finfo(out_dtype).eps * exact.abs().max().item()
    torch.testing.assert_close(out.cpu().double(), exact, rtol=0, atol=tolerance)


@fails_on_stock
def test_views_of_out_see_the_result():
    (a, xa), (b, xb) = data(4, 8, seed=1), data(8, 6, seed=2)
    out = zeros(4, 6)
    first = out[0]
    torch.mm(xa, xb, out=out)
    assert "xla::cast" not in ir(first)
    check(first, (a.double() @ b.double())[0])


@fails_on_stock
@pytest.mark.parametrize("form", ("out", pytest.param("out_dtype", marks=has_out_dtype)))
def test_beta_zero_ignores_self(form):
    (a, xa), (b, xb) = data(4, 8, seed=1), data(8, 6, seed=2)
    xc = torch.full((4, 6), float("nan")).to(DEVICE)
    keywords = {"out": xc} if form == "out" else {"out_dtype": f32}
    result = torch.addmm(xc, xa, xb, beta=0, alpha=2, **keywords)
    check(result, 2 * (a.double() @ b.double()))


@passes_on_stock
def test_out_that_requires_grad_is_refused():
    _, xa = data(4, 8)
    _, xb = data(8, 6)
    out = torch.zeros(4, 6, device=DEVICE, requires_grad=True)
    assert error_of(lambda: torch.mm(xa, xb, out=out)) == (
        "mm(): functions with out=... arguments don't support automatic differentiation, "
        "but one of the arguments requires grad."
    )


@has_out_dtype
@fails_on_stock
@pytest.mark.parametrize("shapes", (((4, 0), (0, 6)), ((0, 8), (8, 6)), ((4, 8), (8, 0))))
def test_empty_dimensions(shapes):
    (a, xa), (b, xb) = (data(*s) for s in shapes)
    check(torch.mm(xa, xb, out_dtype=f32), a.double() @ b.double())


@has_out_dtype
@fails_on_stock
def test_no_grad_and_inference_mode():
    (a, xa), (b, xb) = data(4, 8, seed=1), data(8, 6, seed=2)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert "xla::cast" not in ir(torch.mm(xa, xb, out=torch.zeros(4, 6, device=DEVICE)))
            check(torch.mm(xa, xb, out_dtype=f32), a.double() @ b.double())


@has_out_dtype
@fails_on_stock
def test_s8_saturates_nothing():
    xa = torch.full((2, 4096), -128, dtype=s8).to(DEVICE)
    out = torch.mm(xa, xa.t(), out_dtype=s32)
    assert torch.equal(out.cpu(), torch.full((2, 2), 4096 * 128 * 128, dtype=s32))


@has_out_dtype
@fails_on_stock
def test_integral_results_read_alpha_and_beta_as_integers():
    (c, xc), (a, xa), (b, xb) = (data(*s, dtype=s8) for s in ((4, 6), (4, 8), (8, 6)))
    c32, a32, b32 = c.int(), a.int(), b.int()
    result = torch.addmm(xc, xa, xb, out_dtype=s32, beta=1.5, alpha=2.5)
    assert torch.equal(result.cpu(), torch.addmm(c32, a32, b32, beta=1.5, alpha=2.5))


# ---- numbers, at random


sizes = st.integers(1, 33)
factors = st.sampled_from((0, 1, -1, 2, 0.5, -1.75))
at_random = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@fails_on_stock
@at_random
@given(
    dtype=st.sampled_from(list(WIDE)),
    batch=st.none() | st.integers(1, 4),
    m=sizes,
    k=sizes,
    n=sizes,
    self_shape=st.sampled_from(("full", "row", "column", "one", "vector", "scalar")),
    wide_self=st.booleans(),
    beta=factors,
    alpha=factors,
    out=st.sampled_from((True, False)[: 1 + HAS_OUT_DTYPE]),
)
@pytest.mark.ends_the_process_on_stock("2.6")
def test_addmm_and_baddbmm_at_random(dtype, batch, m, k, n, self_shape, wide_self, beta, alpha, out):
    lead = () if batch is None else (batch,)
    function = torch.addmm if batch is None else torch.baddbmm
    wide = WIDE[dtype]
    if not dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    shape = {
        "full": (*lead, m, n),
        "row": (1, n),
        "column": (m, 1),
        "one": (1, 1),
        "vector": (n,),
        "scalar": (),
    }[self_shape]
    a, xa = data(*lead, m, k, dtype=dtype, seed=m)
    b, xb = data(*lead, k, n, dtype=dtype, seed=n + 100)
    c, _ = data(*shape, dtype=dtype, seed=k + 200)
    xc = (c.to(wide) if wide_self else c).to(DEVICE)
    keywords = {"out": zeros(*lead, m, n, dtype=wide)} if out else {"out_dtype": wide}
    result = function(xc, xa, xb, beta=beta, alpha=alpha, **keywords)
    assert result.dtype == wide
    check(result, (beta * c.double()).expand(*lead, m, n) + alpha * (a.double() @ b.double()))


@fails_on_stock
@at_random
@given(
    dtype=st.sampled_from(list(WIDE)),
    left=st.lists(st.integers(1, 3), max_size=2),
    right=st.lists(st.integers(1, 3), max_size=2),
    m=st.none() | sizes,
    k=sizes,
    n=st.none() | sizes,
)
def test_matmul_into_out_at_random(dtype, left, right, m, k, n):
    left, right = ([], left)[m is not None], ([], right)[n is not None]
    try:
        torch.broadcast_shapes(left, right)
    except RuntimeError:
        right = left if n is not None else []
    a, xa = data(*left, *(() if m is None else (m,)), k, dtype=dtype, seed=k)
    b, xb = data(*right, k, *(() if n is None else (n,)), dtype=dtype, seed=k + 100)
    expected = torch.matmul(a.double(), b.double())
    out = zeros(*expected.shape, dtype=WIDE[dtype])
    if m is None and n is not None and not FUNCTIONALIZED:
        return  # matmul(vector, matrix, out=) loses out's shape there, on stock too
    torch.matmul(xa, xb, out=out)
    assert "xla::cast" not in ir(out)
    check(out, expected)


# ---- refusals


@fails_on_stock
@pytest.mark.parametrize(
    ("self_dtype", "dtype"),
    [(s, d) for s in (f32, bf16, f16, s32) for d in (f32, bf16, f16) if s != d],
)
@pytest.mark.parametrize("name", ("addmm", "addmm_", "baddbmm", *(() if FUNCTIONALIZED else ("baddbmm_",))))
@pytest.mark.ends_the_process_on_stock("2.6", "2.7", "2.8")
def test_dtypes_that_torch_refuses_on_cpu_are_refused_at_the_call(name, self_dtype, dtype):
    batch = (3,) if "bmm" in name else ()
    tensors = [
        torch.ones(*batch, 4, 6, dtype=self_dtype),
        torch.ones(*batch, 4, 8, dtype=dtype),
        torch.ones(*batch, 8, 6, dtype=dtype),
    ]
    call = getattr(torch.Tensor, name)
    assert error_of(call, *(t.to(DEVICE) for t in tensors)) == error_of(call, *tensors)


# With functionalization on, torch's own meta function refuses these first, on stock too.
@passes_on_stock
@pytest.mark.skipif(not FUNCTIONALIZED, reason="refused by this topic alone: see the test above")
def test_baddbmm_in_place_refuses_other_dtypes():
    c, a, b = zeros(3, 4, 6), zeros(3, 4, 8, dtype=bf16), zeros(3, 8, 6, dtype=bf16)
    assert "Input dtypes must be the same" in error_of(lambda: c.baddbmm_(a, b))


@fails_on_stock
def test_a_bias_of_another_dtype_is_refused_at_the_call():
    tensors = [torch.ones(4, 8).bfloat16(), torch.ones(6, 8).bfloat16(), torch.ones(6)]
    call = torch.nn.functional.linear
    assert error_of(call, *(t.to(DEVICE) for t in tensors)) == error_of(call, *tensors)


@fails_on_stock
def test_factors_of_two_dtypes_whose_sum_cannot_compile_are_refused():
    for dtypes in ((bf16, bf16, f32), (bf16, f32, bf16)):
        tensors = [torch.ones(*s, dtype=d) for s, d in zip(((4, 6), (4, 8), (8, 6)), dtypes, strict=True)]
        assert error_of(torch.addmm, *(t.to(DEVICE) for t in tensors)) == error_of(torch.addmm, *tensors)


@fails_on_stock
def test_out_of_the_narrow_dtype_does_not_excuse_a_wide_self():
    (_, xa), (_, xb) = data(4, 8), data(8, 6)
    out = zeros(4, 6, dtype=bf16)
    assert error_of(lambda: torch.addmm(zeros(4, 6), xa, xb, out=out)) == (
        "self and mat2 must have the same dtype, but got Float and BFloat16"
    )


# The wording of torch 2.9's CUDA kernels (aten/src/ATen/native/cuda/Blas.cpp).
PAIR = "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
REFUSED = [
    ("mm", (bf16, bf16), f64, PAIR),
    ("mm", (bf16, bf16), f16, PAIR),
    ("mm", (f32, f32), bf16, PAIR),
    ("mm", (f32, f32), f64, PAIR),
    ("mm", (s8, s8), f32, PAIR),
    ("mm", (bf16, f16), f32, "input dtypes must be the same"),
    ("bmm", (bf16, bf16), f64, PAIR),
    ("bmm", (bf16, f16), f32, "batch1 and batch2 must have the same dtype"),
    ("addmm", (bf16, bf16, bf16), f64, PAIR),
    (
        "addmm",
        (f16, bf16, bf16),
        f32,
        "self and mat2 must have the same dtype, but got Half and BFloat16",
    ),
    (
        "addmm",
        (bf16, f16, bf16),
        f32,
        "mat1 and mat2 must have the same dtype, but got Half and BFloat16",
    ),
    ("baddbmm", (bf16, bf16, bf16), f64, PAIR),
    ("baddbmm", (bf16, bf16, f16), f32, "batch1 and batch2 must have the same dtype"),
    ("baddbmm", (f16, bf16, bf16), f32, "self dtype must match either out_dtype or batch1 dtype"),
]


@has_out_dtype
@fails_on_stock
@pytest.mark.parametrize(("name", "dtypes", "out_dtype", "message"), REFUSED)
def test_out_dtype_refuses_what_cuda_refuses_in_its_words(name, dtypes, out_dtype, message):
    batch = (3,) if "bmm" in name else ()
    shapes = [(*batch, 4, 6), (*batch, 4, 8), (*batch, 8, 6)][-len(dtypes) :]
    tensors = [torch.zeros(s, dtype=d, device=DEVICE) for s, d in zip(shapes, dtypes, strict=True)]
    call = getattr(torch, name)
    assert error_of(lambda: call(*tensors, out_dtype=out_dtype)) == message


@has_out_dtype
@fails_on_stock
def test_out_dtype_refuses_sizes_in_cudas_words():
    m, v, t = (torch.zeros(*s, dtype=bf16, device=DEVICE) for s in ((4, 8), (8,), (3, 4, 8)))
    assert error_of(lambda: torch.mm(m, m, out_dtype=f32)) == (
        "mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)"
    )
    assert error_of(lambda: torch.mm(v, m, out_dtype=f32)) == "self must be a matrix, got 1-D tensor"
    assert error_of(lambda: torch.mm(m, t, out_dtype=f32)) == "mat2 must be a matrix, got 3-D tensor"
    assert error_of(lambda: torch.bmm(m, t, out_dtype=f32)) == "batch1 must be a 3D tensor"
    assert error_of(lambda: torch.bmm(t, t, out_dtype=f32)) == (
        "Expected size for first two dimensions of batch2 tensor to be: [3, 8] but got: [3, 4]."
    )
    assert error_of(lambda: torch.addmm(zeros(5), m, m.t(), out_dtype=f32)).startswith(
        "The expanded size of the tensor (4) must match the existing size (5)"
    )


@has_out_dtype
@fails_on_stock
def test_out_must_have_out_dtype():
    (_, xa), (_, xb) = data(4, 8), data(8, 6)
    out = zeros(4, 6, dtype=bf16)
    assert error_of(lambda: torch.mm(xa, xb, out_dtype=f32, out=out)) == (
        "out_dtype must be the same as the dtype of the provided out tensor"
    )


# ---- what stays as it is


@passes_on_stock
def test_explicit_cast_of_a_product_keeps_its_rounding():
    (_, xa), (_, xb) = data(64, 128, seed=1), data(128, 32, seed=2)
    product = (xa @ xb).float()
    ir(product).expect("""\
%0 = bf16[128,32] xla::device_data()
%1 = bf16[64,128] xla::device_data()
%2 = bf16[64,32] aten::mm(%1, %0)
%3 = f32[64,32] xla::cast(%2)
return %3
""")


@passes_on_stock
def test_same_dtype_calls_have_stock_ir():
    (_, xa), (_, xb), (_, xc) = data(4, 8), data(8, 6), data(6)
    out = [zeros(4, 6, dtype=bf16) for _ in range(2)]
    calls = [
        ("mm", torch.mm(xa, xb)),
        ("mm", torch.mm(xa, xb, out=out[0])),
        ("addmm", torch.addmm(xc, xa, xb)),
        ("addmm", torch.addmm(xc, xa, xb, out=out[1])),
        ("addmm", torch.nn.functional.linear(xa, xb.t(), xc)),
    ]
    for name, result in calls:
        *_, product, _ = ir(result).splitlines()
        assert f" = bf16[4,6] aten::{name}(" in product
        assert not any(op in ir(result) for op in ("xla::dot_general", "xla::cast"))


@has_out_dtype
@fails_on_stock
def test_out_dtype_that_is_the_operands_own_has_the_plain_ops_ir():
    (_, xa), (_, xb), (_, xc) = data(4, 8), data(8, 6), data(6)
    assert ir(torch.mm(xa, xb, out_dtype=bf16)) == ir(torch.mm(xa, xb))
    assert ir(torch.addmm(xc, xa, xb, out_dtype=bf16)) == ir(torch.addmm(xc, xa, xb))
    out = zeros(4, 6, dtype=bf16)
    assert ir(torch.mm(xa, xb, out_dtype=bf16, out=out)) == ir(torch.mm(xa, xb))


@passes_on_stock
@pytest.mark.parametrize("name", ("mm", "bmm"))
def test_products_of_two_dtypes_are_left_to_torch_xla(name):
    batch = (3,) if name == "bmm" else ()
    _, xa = data(*batch, 4, 8)
    _, xb = data(*batch, 8, 6, dtype=f32)
    assert getattr(torch, name)(xb.transpose(-1, -2), xa.transpose(-1, -2)).dtype == f32


@passes_on_stock
def test_factors_of_two_dtypes_that_compile_are_left_to_torch_xla():
    (c, xc), (a, xa), (b, xb) = data(6, dtype=f32), data(4, 8, dtype=f32), data(8, 6)
    result = torch.addmm(xc, xa, xb)
    check(result, c.double() + a.double() @ b.double())


@passes_on_stock
def test_out_that_is_narrower_is_left_to_torch_xla():
    (_, xa), (_, xb) = data(4, 8, dtype=f32), data(8, 6, dtype=f32)
    out = zeros(4, 6, dtype=bf16)
    torch.mm(xa, xb, out=out)
    assert "aten::mm" in ir(out) and "xla::dot_general" not in ir(out)


@has_out_dtype
@passes_on_stock
def test_cpu_tensors_are_left_to_torch():
    a, b = torch.ones(4, 8).bfloat16(), torch.ones(8, 6).bfloat16()
    assert "Expected out tensor to have dtype" in error_of(lambda: torch.mm(a, b, out=torch.zeros(4, 6)))
    with pytest.raises(NotImplementedError):
        torch.mm(a, b, out_dtype=f32)


def into_out(a, b):
    c = torch.zeros(4, 6, device=a.device)
    torch.mm(a, b, out=c)
    return c


@passes_on_stock
def test_torch_func_functionalize_of_cpu_tensors_is_left_to_torch():
    a, b = torch.randn(4, 8).bfloat16(), torch.randn(8, 6).bfloat16()
    result = torch.func.functionalize(into_out)(a, b)
    assert torch.equal(result, torch.mm(a, b).float())


@passes_on_stock
@pytest.mark.skipif(FUNCTIONALIZED, reason="stock torch_xla refuses to nest functionalization")
def test_torch_func_functionalize_of_xla_tensors_is_left_to_torch():
    (_, xa), (_, xb) = data(4, 8), data(8, 6)
    ir(torch.func.functionalize(into_out)(xa, xb)).expect("""\
%0 = bf16[8,6] xla::device_data()
%1 = bf16[4,8] xla::device_data()
%2 = bf16[4,6] aten::mm(%1, %0)
%3 = f32[4,6] xla::cast(%2)
return %3
""")


@passes_on_stock
def test_aot_functionalization_is_left_to_torch():
    graph = torch.fx.experimental.proxy_tensor.make_fx(torch.func.functionalize(into_out))(
        torch.randn(4, 8).bfloat16(), torch.randn(8, 6).bfloat16()
    )
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] == [
        "aten.zeros.default",
        "aten.mm.default",
        "aten._to_copy.default",
    ]


COMPILED_LINEAR = """
import torch, torch_xla
tensors = [torch.arange(32.).reshape(4, 8), torch.arange(48.).reshape(6, 8), torch.arange(6.)]
compiled = torch.compile(torch.nn.functional.linear, backend="openxla")
result = compiled(*(t.to(torch_xla.device()) for t in tensors))
torch.testing.assert_close(result.cpu(), torch.nn.functional.linear(*tensors))
"""


@passes_on_stock
def test_compiled_same_dtype_calls_are_left_to_torch_xla():
    """In a process of its own: torch_xla's backend syncs all live tensors, and so those of a test that failed."""
    forked("-c", COMPILED_LINEAR)


@has_out_dtype
@fails_on_stock
def test_compiled_mm_out_dtype():
    (a, xa), (b, xb) = data(4, 8, seed=1), data(8, 6, seed=2)
    compiled = torch.compile(lambda a, b: torch.mm(a, b, out_dtype=f32), backend="openxla")
    check(compiled(xa, xb), a.double() @ b.double())


# ---- the build around it


ONE_CALL = """
import torch, torch_xla
device = torch_xla.device()
a, b = (torch.zeros(4, 4, dtype=torch.bfloat16, device=device) for _ in range(2))
c = torch.mm(a, b, out=torch.zeros(4, 4, device=device))
print("dot_general" in torch_xla._XLAC._get_xla_tensors_text([c]))
print("libcastoff_torch_xla" in open("/proc/self/maps").read())
"""


@fails_on_stock
@pytest.mark.skipif(not FUNCTIONALIZED, reason="once is enough")
@pytest.mark.default_pin
@pytest.mark.slow
def test_castoff_disable_leaves_stock():
    off = fresh("-c", ONE_CALL, CASTOFF_DISABLE="grad-dtype, matmul-out-dtype")
    assert off.stdout.split() == ["False", "True"] and "CASTOFF_DISABLE" not in off.stderr
    typo = fresh("-c", ONE_CALL, CASTOFF_DISABLE="matmul_out_dtype")
    assert typo.stdout.split() == ["True", "True"]
    assert "CASTOFF_DISABLE names no topic of this build: matmul_out_dtype" in typo.stderr
    assert "matmul-out-dtype" in typo.stderr


@fails_on_stock
@pytest.mark.parametrize(
    ("owner", "name"),
    (("torch.version", "git_version"), ("torch_xla.version", "__xla_gitrev__")),
)
def test_library_refuses_another_build(owner, name, monkeypatch):
    _castoff = importlib.import_module("torch_xla._castoff")
    monkeypatch.setattr(sys.modules[owner], name, "0123456")
    _castoff.library.cache_clear()
    with pytest.raises(ImportError, match=r"built for torch(_xla)? commit \w{40}.* 0123456"):
        _castoff.library()


@passes_on_stock
@pytest.mark.skipif(not FUNCTIONALIZED, reason="once is enough")
@pytest.mark.since("2.8", "allow_override of Library.impl")
@pytest.mark.default_pin
def test_dispatcher_still_warns_of_the_users_own_override():
    done = completed(
        "-c",
        """
import sys, torch, torch_xla
print("imported", file=sys.stderr, flush=True)
library = torch.library.Library("aten", "IMPL")
library.impl("mm", lambda a, b: a, "XLA", allow_override=True)
""",
    )
    at_import, afterwards = done.stderr.split("imported\n")
    assert "previously registered kernel" not in at_import
    assert "previously registered kernel" in afterwards


@fails_on_stock
@pytest.mark.skipif(not FUNCTIONALIZED, reason="this is what it runs")
@pytest.mark.slow
def test_all_of_this_with_functionalization_off():
    run_tests(__file__, XLA_DISABLE_FUNCTIONALIZATION="1", EXPECTTEST_ACCEPT="")
