"""Gradients of mm, bmm, addmm and baddbmm with out_dtype=: patches/torch_xla/matmul-out-dtype.

The cotangent stays as wide as the product: it meets the narrow factor in one dot of mixed dtypes, and is
rounded once, if at all, to what the factor's grad_dtype says.
"""

import pytest
import torch
import torch_xla
from compared import check
from ir_text import hlo, ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked
from tensors import DEVICE, bf16, f16, f32, leaf, random, s8, s32
from torch.autograd import forward_ad

has_out_dtype = pytest.mark.since("2.8", "out_dtype= of matrix products")
narrow_dtypes = pytest.mark.parametrize("dtype", (bf16, f16), ids=("bf16", "f16"))


OPERATORS = {
    "mm": (torch.mm, ((4, 8), (8, 6)), {}),
    "bmm": (torch.bmm, ((3, 4, 8), (3, 8, 6)), {}),
    "addmm": (torch.addmm, ((6,), (4, 8), (8, 6)), {"beta": 2.0, "alpha": 0.5}),
    "baddbmm": (torch.baddbmm, ((3, 1, 6), (3, 4, 8), (3, 8, 6)), {"beta": 0.5, "alpha": 3.0}),
}
operators = pytest.mark.parametrize("name", OPERATORS)


def operands(name, dtype):
    return [random(*shape, dtype=dtype, seed=i) for i, shape in enumerate(OPERATORS[name][1])]


def reference(name, cpu):
    """The product of float64 copies that require grad, and the copies."""
    call, _, scalars = OPERATORS[name]
    exact = [t.double().requires_grad_() for t in cpu]
    return call(*exact, **scalars), exact


# ---- one dot of mixed dtypes


@has_out_dtype
@fails_on_stock
def test_gradients_of_mm_are_one_dot_each_and_one_rounding():
    a, b, g = leaf(random(4, 8)), leaf(random(8, 6)), random(4, 6, dtype=f32).to(DEVICE)
    torch.mm(a, b, out_dtype=f32).backward(g)
    ir(a.grad).expect("""\
%0 = bf16[8,6] xla::device_data()
%1 = f32[4,6] xla::device_data()
%2 = f32[4,8] xla::dot_general(%1, %0)
%3 = bf16[4,8] xla::cast(%2)
return %3
""")
    ir(b.grad).expect("""\
%0 = f32[4,6] xla::device_data()
%1 = bf16[4,8] xla::device_data()
%2 = f32[8,6] xla::dot_general(%1, %0)
%3 = bf16[8,6] xla::cast(%2)
return %3
""")


@has_out_dtype
@fails_on_stock
def test_gradients_for_leaves_with_a_wide_grad_dtype_have_no_cast():
    a, b = leaf(random(4, 8), f32), leaf(random(8, 6), f32)
    torch.mm(a, b, out_dtype=f32).backward(random(4, 6, dtype=f32).to(DEVICE))
    assert a.grad.dtype == b.grad.dtype == f32
    ir(a.grad, b.grad).expect("""\
%0 = bf16[8,6] xla::device_data()
%1 = f32[4,6] xla::device_data()
%2 = f32[4,8] xla::dot_general(%1, %0)
%3 = bf16[4,8] xla::device_data()
%4 = f32[8,6] xla::dot_general(%3, %1)
return %2, %4
""")
    assert "convert" not in hlo(a.grad, b.grad)


@has_out_dtype
@fails_on_stock
@narrow_dtypes
@operators
def test_gradients_against_float64(name, dtype):
    cpu = operands(name, dtype)
    call, _, scalars = OPERATORS[name]
    product, exact = reference(name, cpu)
    g = random(*product.shape, dtype=f32, seed=9)
    expected = torch.autograd.grad(product, exact, g.double())
    for grad_dtype in (None, f32):
        leaves = [leaf(t, grad_dtype) for t in cpu]
        result = call(*leaves, out_dtype=f32, **scalars)
        assert result.dtype == f32 and result.requires_grad
        check(result, product)
        result.backward(g.to(DEVICE))
        text = ir(*(t.grad for t in leaves))
        assert text.count("xla::dot_general") == 2
        assert text.count("xla::cast") == (0 if grad_dtype else len(leaves))
        for tensor, reference_grad in zip(leaves, expected, strict=True):
            assert tensor.grad.dtype == (grad_dtype or dtype)
            check(tensor.grad, reference_grad)


@has_out_dtype
@fails_on_stock
@narrow_dtypes
@operators
def test_second_gradients_against_float64(name, dtype):
    cpu = operands(name, dtype)
    call, _, scalars = OPERATORS[name]
    product, exact = reference(name, cpu)
    g = random(*product.shape, dtype=f32, seed=9)
    weights = [random(*t.shape, seed=20 + i).double() for i, t in enumerate(cpu)]

    def second(result, leaves, cotangent, factors):
        first = torch.autograd.grad(result, leaves, cotangent, create_graph=True)
        total = sum((grad * factor).sum() for grad, factor in zip(first, factors, strict=True))
        return torch.autograd.grad(total, [cotangent, *leaves], allow_unused=True)

    expected = second(product, exact, g.double().requires_grad_(), weights)
    leaves = [leaf(t, f32) for t in cpu]
    result = call(*leaves, out_dtype=f32, **scalars)
    actual = second(result, leaves, leaf(g), [w.float().to(DEVICE) for w in weights])
    assert "xla::cast" not in ir(*(grad for grad in actual if grad is not None))
    for grad, reference_grad in zip(actual, expected, strict=True):
        assert (grad is None) == (reference_grad is None)
        if grad is not None:
            assert grad.dtype == f32
            check(grad, reference_grad)


@has_out_dtype
@fails_on_stock
def test_third_gradient_through_a_nonlinearity():
    a, b = random(4, 8), random(8, 6)

    def third(x, y, product):
        value = product(x, y).pow(4).sum()
        for _ in range(3):
            (grad,) = torch.autograd.grad(value, y, create_graph=True)
            value = grad.pow(2).sum()
        return grad

    expected = third(a.double(), b.double().requires_grad_(), torch.mm)
    actual = third(a.to(DEVICE), leaf(b, f32), lambda x, y: torch.mm(x, y, out_dtype=f32))
    error = (actual.detach().cpu().double() - expected).norm() / expected.norm()
    assert error < 1e-5


@has_out_dtype
@fails_on_stock
@pytest.mark.parametrize(
    "view",
    (lambda w: w.t(), lambda w: w.view(6, 8).t(), lambda w: w.reshape(2, 3, 8).flatten(0, 1).t()),
    ids=("t", "view", "reshape"),
)
def test_wide_gradients_pass_views_of_the_leaf(view):
    a, w, g = random(4, 8), random(6, 8), random(4, 6, dtype=f32)
    tensor = leaf(w, f32)
    torch.mm(a.to(DEVICE), view(tensor), out_dtype=f32).backward(g.to(DEVICE))
    assert tensor.grad.dtype == f32 and "xla::cast" not in ir(tensor.grad)
    check(tensor.grad, (a.double().t() @ g.double()).t())


@has_out_dtype
@fails_on_stock
def test_only_the_factors_that_need_it_get_a_dot():
    a, b = random(4, 8).to(DEVICE), leaf(random(8, 6))
    torch.mm(a, b, out_dtype=f32).sum().backward()
    assert a.grad is None and ir(b.grad).count("xla::dot_general") == 1


@has_out_dtype
@fails_on_stock
@pytest.mark.parametrize("self_dtype", (bf16, f32), ids=("bf16", "f32"))
def test_gradient_of_self_has_its_dtype(self_dtype):
    c, a, b = random(6, dtype=self_dtype), random(4, 8, seed=1), random(8, 6, seed=2)
    leaves = leaf(c), leaf(a), leaf(b)
    g = random(4, 6, dtype=f32, seed=3)
    torch.addmm(*leaves, out_dtype=f32, beta=3).backward(g.to(DEVICE))
    assert [t.grad.dtype for t in leaves] == [self_dtype, bf16, bf16]
    check(leaves[0].grad, 3 * g.double().sum(0))


@has_out_dtype
@fails_on_stock
def test_beta_zero_hides_nans_of_self_and_sends_zeros_back():
    c, a, b = leaf(torch.full((4, 6), float("nan"))), leaf(random(4, 8)), leaf(random(8, 6))
    result = torch.addmm(c, a, b, out_dtype=f32, beta=0)
    check(result, a.detach().cpu().double() @ b.detach().cpu().double())
    result.sum().backward()
    assert torch.equal(c.grad.cpu(), torch.zeros(4, 6))


@has_out_dtype
@fails_on_stock
def test_out_dtype_that_is_the_operands_own_differentiates_as_the_plain_op():
    a, b, g = random(4, 8), random(8, 6), random(4, 6).to(DEVICE)
    plain, same = leaf(b), leaf(b)
    torch.mm(a.to(DEVICE), plain).backward(g)
    torch.mm(a.to(DEVICE), same, out_dtype=bf16).backward(g)
    assert ir(same.grad) == ir(plain.grad)


@has_out_dtype
@fails_on_stock
def test_the_narrowing_is_one_of_the_casts_that_can_be_recorded():
    a, b = leaf(random(4, 8)), leaf(random(8, 6), f32)
    product = torch.mm(a, b, out_dtype=f32)
    with torch.autograd.graph.record_implicit_casts() as casts:
        product.sum().backward()
    assert [(cast.from_dtype, cast.to_dtype) for cast in casts] == [(f32, bf16)]


@has_out_dtype
@fails_on_stock
def test_integer_products_under_autograd_are_constants():
    a, b = (torch.randint(-128, 128, s).to(s8) for s in ((4, 8), (8, 6)))
    product = torch.mm(a.to(DEVICE), b.to(DEVICE), out_dtype=s32)
    assert not product.requires_grad
    assert torch.equal(product.cpu().long(), a.long() @ b.long())


@has_out_dtype
@fails_on_stock
@operators
def test_without_a_graph_the_ir_is_that_of_tensors_without_grad(name):
    call, _, scalars = OPERATORS[name]
    constants = [t.to(DEVICE) for t in operands(name, bf16)]
    leaves = [leaf(t) for t in operands(name, bf16)]
    with torch.no_grad():
        result = call(*leaves, out_dtype=f32, **scalars)
    assert not result.requires_grad
    expected = ir(call(*constants, out_dtype=f32, **scalars))
    assert ir(result) == expected
    assert ir(call(*leaves, out_dtype=f32, **scalars)) == expected


# ---- what has no gradient


@has_out_dtype
@fails_on_stock
@operators
def test_out_refuses_operands_that_require_grad(name):
    call, _, scalars = OPERATORS[name]
    tensors = [leaf(t) for t in operands(name, bf16)]
    out = torch.zeros(reference(name, operands(name, bf16))[0].shape).to(DEVICE)
    with pytest.raises(RuntimeError, match=rf"{name}\(\): functions with out=... arguments don't support automatic"):
        call(*tensors, out_dtype=f32, out=out, **scalars)
    with torch.no_grad():
        assert call(*tensors, out_dtype=f32, out=out, **scalars) is out


@passes_on_stock
def test_wider_out_refuses_operands_that_require_grad():
    with pytest.raises(RuntimeError, match=r"functions with out=\.\.\. arguments don't support automatic"):
        torch.mm(leaf(random(4, 8)), leaf(random(8, 6)), out=torch.zeros(4, 6, device=DEVICE))


@has_out_dtype
@fails_on_stock
@operators
def test_forward_mode_is_refused(name):
    call, _, scalars = OPERATORS[name]
    first, *rest = (t.to(DEVICE) for t in operands(name, bf16))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(first, torch.ones_like(first))
        with pytest.raises(NotImplementedError, match="no forward-mode derivative on XLA: expected operands without"):
            call(dual, *rest, out_dtype=f32, **scalars)


@has_out_dtype
@fails_on_stock
def test_bad_operands_raise_under_autograd_what_they_raise_without():
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(4x8 and 4x8\)"):
        torch.mm(leaf(random(4, 8)), leaf(random(4, 8)), out_dtype=f32)


# ---- torch.compile, fake tensors, compiled autograd


@has_out_dtype
@fails_on_stock
@operators
def test_compiled_in_one_graph_with_gradients(name):
    torch._dynamo.reset()
    cpu = operands(name, bf16)
    call, _, scalars = OPERATORS[name]
    product, exact = reference(name, cpu)
    g = random(*product.shape, dtype=f32, seed=9)
    expected = torch.autograd.grad(product, exact, g.double())
    compiled = torch.compile(lambda *t: call(*t, out_dtype=f32, **scalars), backend="openxla", fullgraph=True)
    with torch.no_grad():
        check(compiled(*(t.to(DEVICE) for t in cpu)), product)
    leaves = [leaf(t) for t in cpu]
    result = compiled(*leaves)
    check(result, product)
    result.backward(g.to(DEVICE))
    for tensor, reference_grad in zip(leaves, expected, strict=True):
        assert tensor.grad.dtype == bf16
        check(tensor.grad, reference_grad)


@has_out_dtype
@fails_on_stock
def test_compiled_autograd():
    a, b, g = random(4, 8), random(8, 6), random(4, 6, dtype=f32)
    tensor = leaf(b, f32)
    product = torch.mm(a.to(DEVICE), tensor, out_dtype=f32)
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        product.backward(g.to(DEVICE))
    assert tensor.grad.dtype == f32
    check(tensor.grad, a.double().t() @ g.double())


@has_out_dtype
@fails_on_stock
@operators
def test_fake_tensors(name):
    call, shapes, scalars = OPERATORS[name]
    expected = call(*(torch.empty(s) for s in shapes)).shape
    with torch._subclasses.FakeTensorMode():
        for requires_grad in (False, True):
            fakes = [torch.empty(s, dtype=bf16, device=DEVICE, requires_grad=requires_grad) for s in shapes]
            result = call(*fakes, out_dtype=f32, **scalars)
            assert (result.shape, result.dtype, result.device) == (expected, f32, DEVICE)
        result.sum().backward()
        assert [(t.grad.shape, t.grad.dtype) for t in fakes] == [(t.shape, bf16) for t in fakes]


@fails_on_stock
def test_meta_kernel_of_dot_general():
    a, b = torch.empty(5, 2, 3, 4, device="meta", dtype=bf16), torch.empty(4, 7, 5, device="meta", dtype=bf16)
    result = torch.ops.castoff.dot_general(a, b, [3], [0], [0], [2], f32)
    assert (result.shape, result.dtype) == ((5, 2, 3, 7), f32)
    with pytest.raises(RuntimeError, match="expected dimension 1 of lhs and 0 of rhs to be of one size"):
        torch.ops.castoff.dot_general(a, b, [1], [0], [], [], f32)


@fails_on_stock
@pytest.mark.parametrize(
    ("shapes", "dimensions"),
    (
        (((3, 4, 5), (5, 6)), ([2], [0], [], [])),
        (((5, 3, 4), (6, 5)), ([0], [1], [], [])),
        (((4, 3, 5), (5, 3, 6)), ([2], [0], [1], [1])),
        (((3, 4, 5), (5, 4, 6)), ([1, 2], [1, 0], [], [])),
        (((2, 3, 4, 5), (5, 2, 6, 3)), ([3], [0], [0, 1], [1, 3])),
        (((5,), (5,)), ([0], [0], [], [])),
    ),
)
def test_dot_general_of_any_dimension_numbers(shapes, dimensions):
    a, b = (random(*s, seed=i) for i, s in enumerate(shapes))
    letters = "abcdefgh"
    left = letters[: a.dim()]
    right = list("stuvwxyz"[: b.dim()])
    for i, j in zip((*dimensions[0], *dimensions[2]), (*dimensions[1], *dimensions[3]), strict=True):
        right[j] = left[i]
    batch = [left[i] for i in dimensions[2]]
    free = [x for x in left if x not in right] + [x for x in right if x not in left]
    equation = f"{left},{''.join(right)}->{''.join(batch + free)}"
    exact = [t.double().requires_grad_() for t in (a, b)]
    product = torch.einsum(equation, *exact)
    g = random(*product.shape, dtype=f32, seed=5)
    expected = torch.autograd.grad(product, exact, g.double())
    leaves = leaf(a, f32), leaf(b, f32)
    for factors in (leaves, (leaves[0].float(), leaves[1]), (leaves[0], leaves[1].float())):
        result = torch.ops.castoff.dot_general(*factors, *dimensions, f32)
        check(result, product)
        for grad, reference_grad in zip(torch.autograd.grad(result, factors, g.to(DEVICE)), expected, strict=True):
            check(grad, reference_grad)


# ---- precision


@has_out_dtype
@fails_on_stock
def test_every_dot_has_the_precision_that_is_set(set_matmul_precision):
    set_matmul_precision("highest")
    a, b, g = random(4, 8), random(8, 6), random(4, 6, dtype=f32)
    leaves = leaf(a), leaf(b)
    product = torch.mm(*leaves, out_dtype=f32)
    product.backward(g.to(DEVICE))
    tensors = [product, *(t.grad for t in leaves)]
    text = torch_xla._XLAC._get_xla_tensors_hlo(tensors)
    dots = [line for line in text.splitlines() if " dot(" in line]
    assert len(dots) == 3 and all("operand_precision={highest,highest}" in line for line in dots)
    assert ir(product).count("f32[4,6] xla::dot_general") == 1
    check(product, a.double() @ b.double())
    check(leaves[1].grad, a.double().t() @ g.double())


# ---- the build around it

SPMD = """
import numpy as np, torch, torch_xla
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
xr.use_spmd()
device, mesh = torch_xla.device(), xs.Mesh(np.arange(4), (4,), ("model",))
a, b, g = torch.randn(16, 32).bfloat16(), torch.randn(32, 8).bfloat16(), torch.randn(16, 8)
expected = a.double().t() @ g.double()
for spec in (("model", None), (None, "model")):
    w = b.to(device)
    x = a.to(device)
    xs.mark_sharding(w, mesh, spec)
    xs.mark_sharding(x, mesh, ("model", None))
    w.requires_grad_()
    w.grad_dtype = torch.float32
    product = torch.mm(x, w, out_dtype=torch.float32)
    product.backward(g.to(device))
    torch_xla.sync()
    for actual, exact in ((product, a.double() @ b.double()), (w.grad, expected)):
        assert (actual.detach().cpu().double() - exact).norm() / exact.norm() < 1e-6
print("done")
"""


@has_out_dtype
@fails_on_stock
def test_sharded_operands():
    assert forked("-c", SPMD, CPU_NUM_DEVICES="4").stdout == "done\n"


@passes_on_stock
def test_plain_products_have_stock_gradients():
    a, b = leaf(random(4, 8)), leaf(random(8, 6))
    torch.mm(a, b).backward(random(4, 6).to(DEVICE))
    ir(a.grad, b.grad).expect("""\
%0 = bf16[8,6] xla::device_data()
%1 = bf16[6,8] aten::permute(%0)
%2 = bf16[4,6] xla::device_data()
%3 = bf16[4,8] aten::mm(%2, %1)
%4 = bf16[4,8] xla::device_data()
%5 = bf16[8,4] aten::permute(%4)
%6 = bf16[8,6] aten::mm(%5, %2)
return %3, %6
""")
