"""torch.ops.higher_order.out_dtype on XLA tensors: patches/torch_xla/out-dtype-op."""

from typing import NamedTuple

import pytest
import torch
import torch_xla
from compared import check
from ir_text import hlo, ir
from marks import fails_on_stock, passes_on_stock
from other_process import completed, forked
from tensors import DEVICE, bf16, f16, f32, f64, leaf, s8, s32
from torch._higher_order_ops.out_dtype import ALLOWABLE_OPS
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch_xla.stablehlo import exported_program_to_stablehlo

aten = torch.ops.aten
out_dtype = torch.ops.higher_order.out_dtype
WIDE = {bf16: f32, f16: f32, s8: s32}


class Case(NamedTuple):
    op: torch._ops.OpOverload
    shapes: tuple[tuple[int, ...], ...]
    rest: tuple = ()  # of the arguments, after the tensors


def convolution(*shapes, bias=False, stride=1, padding=0, dilation=1, transposed=False, output_padding=0, groups=1):
    """A Case of aten.convolution; numbers stand for one number in every spatial dimension."""
    lists = ([n] * (len(shapes[0]) - 2) if isinstance(n, int) else n for n in (stride, padding, dilation))
    outer = [output_padding] * (len(shapes[0]) - 2) if isinstance(output_padding, int) else output_padding
    rest = (*lists, transposed, outer, groups)
    return Case(aten.convolution.default, shapes, rest if bias else (None, *rest))


PRODUCTS = {
    "mm": Case(aten.mm.default, ((5, 7), (7, 3))),
    "linear": Case(aten.linear.default, ((5, 7), (3, 7))),
    "linear 1d": Case(aten.linear.default, ((7,), (3, 7))),
    "linear 3d": Case(aten.linear.default, ((2, 5, 7), (3, 7))),
    "linear bias": Case(aten.linear.default, ((5, 7), (3, 7), (3,))),
    "linear 3d bias": Case(aten.linear.default, ((2, 5, 7), (3, 7), (3,))),
    "conv2d": Case(aten.conv2d.default, ((2, 4, 9, 8), (6, 4, 3, 3))),
    "conv2d unbatched": Case(aten.conv2d.default, ((4, 9, 8), (6, 4, 3, 3), (6,))),
    "conv2d all": Case(aten.conv2d.default, ((2, 4, 17, 15), (6, 2, 3, 5), (6,)), ([2, 3], [1, 2], [2, 1], 2)),
    "conv2d depthwise": Case(aten.conv2d.default, ((2, 8, 9, 9), (16, 1, 3, 3)), (None, [1], [1], [1], 8)),
    "1d": convolution((2, 4, 31), (6, 4, 5), stride=2, padding=2),
    "2d": convolution((2, 4, 9, 8), (6, 4, 3, 3), (6,), bias=True, stride=[1, 2], padding=[1, 0]),
    "2d 1x1": convolution((3, 4, 1, 1), (6, 4, 1, 1)),
    "3d": convolution((2, 4, 5, 6, 7), (6, 2, 3, 3, 3), (6,), bias=True, stride=[2, 1, 1], padding=1, groups=2),
    "transposed": convolution((2, 8, 7, 6), (8, 6, 3, 3), stride=2, padding=1, transposed=True, output_padding=[1, 0]),
    "transposed groups": convolution(
        (2, 8, 7, 6),
        (8, 3, 3, 2),
        (6,),
        bias=True,
        stride=[2, 3],
        padding=[1, 0],
        dilation=[2, 1],
        transposed=True,
        output_padding=[1, 2],
        groups=2,
    ),
    "transposed 3d": convolution(
        (2, 4, 5, 6, 7), (4, 2, 3, 3, 3), stride=2, padding=1, transposed=True, output_padding=1, groups=2
    ),
    "output_padding of the stride": convolution((2, 4, 5), (4, 3, 2), dilation=2, transposed=True, output_padding=1),
    "padding beyond the kernel": convolution((2, 4, 5, 5), (4, 3, 2, 2), padding=2, transposed=True),
}
ELEMENTWISE = {
    "mul": Case(aten.mul.Tensor, ((5, 7), (5, 7))),
    "mul broadcast": Case(aten.mul.Tensor, ((5, 7), (7,))),
    "mul number": Case(aten.mul.Scalar, ((5, 7),), (1.5,)),
    "div": Case(aten.div.Tensor, ((5, 7), (5, 7))),
    "div number": Case(aten.div.Scalar, ((5, 7),), (3,)),
}
products = pytest.mark.parametrize("case", PRODUCTS.values(), ids=PRODUCTS)
elementwise = pytest.mark.parametrize("case", ELEMENTWISE.values(), ids=ELEMENTWISE)
every_op = pytest.mark.parametrize("case", (PRODUCTS | ELEMENTWISE).values(), ids=PRODUCTS | ELEMENTWISE)
narrow_dtypes = pytest.mark.parametrize("dtype", WIDE, ids=("bf16", "f16", "s8"))
narrow_floats = pytest.mark.parametrize("dtype", (bf16, f16), ids=("bf16", "f16"))


def random(*shape, dtype=bf16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    values = torch.randint(-128, 128, shape, generator=generator).to(dtype)
    values.view(-1)[0], values.view(-1)[-1] = -128, 127
    return values


def operands(case, dtype):
    return [random(*shape, dtype=dtype, seed=i) for i, shape in enumerate(case.shapes)]


# ---- the cases are upstream's list


@passes_on_stock
def test_every_op_that_upstream_allows_is_here():
    assert {case.op for case in (PRODUCTS | ELEMENTWISE).values()} == set(ALLOWABLE_OPS)


# ---- products: one native op


@fails_on_stock
@narrow_dtypes
@products
def test_products_are_one_native_op_without_operand_casts(case, dtype):
    cpu = operands(case, dtype)
    result = out_dtype(case.op, WIDE[dtype], *(t.to(DEVICE) for t in cpu), *case.rest)
    assert result.dtype == WIDE[dtype]
    text, lowered = ir(result), hlo(result)
    biases = len(cpu) - 2
    assert text.count("xla::cast") == biases and lowered.count(" convert(") == biases
    assert text.count("xla::dot_general") + text.count("xla::convolution") == 1
    assert lowered.count(" dot(") + lowered.count(" convolution(") == 1
    check(result, case.op(*(t.double() for t in cpu), *case.rest))


@fails_on_stock
def test_integer_products_are_exact_at_the_extremes():
    for x, y in ((-128, -128), (-128, 127), (127, 127)):
        a, b = (torch.full(s, v, dtype=s8) for s, v in (((16, 4096), x), ((4096, 16), y)))
        product = out_dtype(aten.mm.default, s32, a.to(DEVICE), b.to(DEVICE))
        assert "xla::cast" not in ir(product)
        assert torch.equal(product.cpu().long(), a.long() @ b.long())
        image, kernel = (torch.full(s, v, dtype=s8) for s, v in (((2, 64, 9, 9), x), ((8, 64, 3, 3), y)))
        result = out_dtype(aten.conv2d.default, s32, image.to(DEVICE), kernel.to(DEVICE))
        assert "xla::cast" not in ir(result)
        assert torch.equal(result.cpu().long(), torch.full((2, 8, 7, 7), 64 * 9 * x * y))


@fails_on_stock
def test_a_bias_of_the_wide_dtype_is_added_as_it_is():
    x, w, b = random(5, 7), random(3, 7, seed=1), random(3, dtype=f32, seed=2)
    result = out_dtype(aten.linear.default, f32, x.to(DEVICE), w.to(DEVICE), b.to(DEVICE))
    assert "xla::cast" not in ir(result) and "convert" not in hlo(result)
    check(result, torch.nn.functional.linear(x.double(), w.double(), b.double()))


@fails_on_stock
def test_convolutions_that_differ_in_their_window_only_are_two():
    x, w = random(2, 4, 9, 9), random(4, 4, 3, 3)
    for n in (1, 2, 3):
        result = out_dtype(aten.conv2d.default, f32, x.to(DEVICE), w.to(DEVICE), None, [1], [n], [n])
        assert "xla::convolution" in ir(result)
        check(result, torch.nn.functional.conv2d(x.double(), w.double(), padding=n, dilation=n))


@fails_on_stock
def test_convolutions_have_the_precision_that_is_set(set_matmul_precision):
    x, w = leaf(random(2, 4, 9, 9)), leaf(random(4, 4, 3, 3))
    set_matmul_precision("highest")
    result = out_dtype(aten.conv2d.default, f32, x, w)
    result.sum().backward()
    text = torch_xla._XLAC._get_xla_tensors_hlo([result, x.grad, w.grad])
    lines = [line for line in text.splitlines() if " convolution(" in line]
    assert len(lines) == 3 and all("operand_precision={highest,highest}" in line for line in lines)


# ---- what upstream does by casts stays as it is


@passes_on_stock
@narrow_dtypes
@elementwise
def test_elementwise_ops_cast_their_operands(case, dtype):
    if not dtype.is_floating_point and case.op is not aten.mul.Tensor:
        pytest.skip("upstream's result is no integer of the values' own")
    cpu = operands(case, dtype)
    result = out_dtype(case.op, WIDE[dtype], *(t.to(DEVICE) for t in cpu), *case.rest)
    assert result.dtype == WIDE[dtype]
    check(result, case.op(*(t.double() for t in cpu), *case.rest))


@passes_on_stock
def test_ir_of_an_elementwise_op():
    a, b = random(5, 7).to(DEVICE), random(5, 7).to(DEVICE)
    ir(out_dtype(aten.mul.Tensor, f32, a, b)).expect("""\
%0 = bf16[5,7] xla::device_data()
%1 = f32[5,7] xla::cast(%0)
%2 = bf16[5,7] xla::device_data()
%3 = f32[5,7] xla::cast(%2)
%4 = f32[5,7] aten::mul(%3, %1)
return %4
""")


@passes_on_stock
@pytest.mark.parametrize(
    ("first", "second", "result"),
    ((bf16, bf16, bf16), (f32, f32, f32), (f32, f32, f64), (bf16, f32, f32), (s8, s8, f32), (f32, f32, bf16)),
    ids=str,
)
def test_other_dtypes_are_cast_as_upstream_does(first, second, result):
    a, b = random(4, 8, dtype=first), random(8, 6, dtype=second)
    actual = out_dtype(aten.mm.default, result, a.to(DEVICE), b.to(DEVICE))
    text = ir(actual)
    # Of bfloat16 operands upstream multiplies float32 copies: exact-dots, where it is, leaves these out.
    exact = first == second == result == bf16 and "f32[4,6] xla::dot_general" in text
    assert exact or ("aten::mm" in text and "dot_general" not in text)
    torch.testing.assert_close(actual.cpu(), out_dtype(aten.mm.default, result, a, b), rtol=2**-7, atol=1e-2)


@fails_on_stock
@every_op
@pytest.mark.parametrize("dtype", (torch.float8_e4m3fn, torch.float8_e5m2), ids=str)
def test_float8_operands_are_not_rounded_to_float8_again(case, dtype):
    cpu = operands(case, dtype)
    actual = out_dtype(case.op, f32, *(t.to(DEVICE) for t in cpu), *case.rest)
    assert "f8e4m3fn[" not in (text := ir(actual)).splitlines()[-2] and "f8e5m2[" not in text.splitlines()[-2]
    check(actual, case.op(*(t.double() for t in cpu), *case.rest))


@passes_on_stock
@every_op
def test_cpu_tensors_are_left_to_torch(case):
    cpu = operands(case, bf16)
    expected = case.op(*(t.float() for t in cpu), *case.rest)
    assert torch.equal(out_dtype(case.op, f32, *cpu, *case.rest), expected)
    first, *others = cpu
    result = out_dtype(case.op, f32, first.requires_grad_(), *others, *case.rest)
    with pytest.raises(RuntimeError, match="Autograd not implemented for out_dtype"):
        result.sum().backward()


@passes_on_stock
@pytest.mark.parametrize(
    ("op", "error"),
    ((torch.mm, "must be an OpOverload"), (aten.mul_.Tensor, "functional operator"), (aten.bmm.default, "only allows")),
    ids=("no overload", "in place", "not allowed"),
)
def test_upstreams_own_errors(op, error):
    a = random(4, 4).to(DEVICE)
    with pytest.raises(ValueError, match=error):
        out_dtype(op, f32, a, a)


refuses_shapes = pytest.mark.since("2.9", "a product that does not end the process if the shapes do not fit")


@passes_on_stock
@pytest.mark.parametrize(
    "case",
    (
        pytest.param(Case(aten.mm.default, ((4, 8), (4, 8))), marks=refuses_shapes),
        pytest.param(Case(aten.linear.default, ((4, 8), (6, 7))), marks=refuses_shapes),
        pytest.param(Case(aten.linear.default, ((4, 8), (6, 8), (5,))), marks=refuses_shapes),
        Case(aten.conv2d.default, ((2, 4, 9, 9), (6, 3, 3, 3))),
        Case(aten.conv2d.default, ((2, 4, 2, 2), (6, 4, 3, 3))),
        Case(aten.conv2d.default, ((2, 4, 9, 9), (6, 4, 3, 3), (5,))),
    ),
)
def test_operands_that_do_not_fit_are_refused_at_the_call(case):
    with pytest.raises(RuntimeError):
        out_dtype(case.op, f32, *(t.to(DEVICE) for t in operands(case, bf16)))


# ---- gradients


@fails_on_stock
def test_gradients_of_conv2d_are_one_convolution_each():
    x, w = leaf(random(2, 4, 9, 8), f32), leaf(random(6, 4, 3, 3), f32)
    g = random(2, 6, 7, 6, dtype=f32).to(DEVICE)
    out_dtype(aten.conv2d.default, f32, x, w).backward(g)
    ir(x.grad, w.grad).expect("""\
%0 = bf16[6,4,3,3] xla::device_data()
%1 = f32[2,6,7,6] xla::device_data()
%2 = f32[2,4,9,8] xla::convolution(%1, %0)
%3 = bf16[2,4,9,8] xla::device_data()
%4 = f32[6,4,3,3] xla::convolution(%3, %1)
return %2, %4
""")


def reference_gradients(case, cpu):
    exact = [t.double().requires_grad_() for t in cpu]
    result = case.op(*exact, *case.rest)
    g = random(*result.shape, dtype=f32, seed=9)
    return g, torch.autograd.grad(result, exact, g.double())


@fails_on_stock
@narrow_floats
@every_op
def test_gradients_against_float64(case, dtype):
    cpu = operands(case, dtype)
    g, expected = reference_gradients(case, cpu)
    narrow, wide = [leaf(t) for t in cpu], [leaf(t, f32) for t in cpu]
    for leaves in (narrow, wide):
        out_dtype(case.op, f32, *leaves, *case.rest).backward(g.to(DEVICE))
    grads = [t.grad for t in wide]
    if case in PRODUCTS.values():
        assert "xla::cast" not in ir(*grads) and "convert" not in hlo(*grads)
    for rounded, exact, reference in zip(narrow, grads, expected, strict=True):
        assert (rounded.grad.dtype, exact.dtype) == (dtype, f32)
        check(rounded.grad, reference)
        check(exact, reference)


def second_gradients(case, result, leaves, cotangent):
    first = torch.autograd.grad(result, leaves, cotangent, create_graph=True)
    factors = [random(*t.shape, seed=20 + i).to(cotangent) for i, t in enumerate(leaves)]
    total = sum((grad * factor).sum() for grad, factor in zip(first, factors, strict=True))
    return torch.autograd.grad(total, [cotangent, *leaves], allow_unused=True)


@fails_on_stock
@every_op
def test_second_gradients(case):
    cpu = operands(case, bf16)
    exact = [t.double().requires_grad_() for t in cpu]
    product = case.op(*exact, *case.rest)
    g = random(*product.shape, dtype=f32, seed=9)
    expected = second_gradients(case, product, exact, g.double().requires_grad_())
    leaves = [leaf(t, f32) for t in cpu]
    actual = second_gradients(case, out_dtype(case.op, f32, *leaves, *case.rest), leaves, leaf(g))
    for grad, reference in zip(actual, expected, strict=True):
        assert (grad is None) == (reference is None)
        if grad is not None:
            check(grad, reference)


@fails_on_stock
def test_wide_gradients_pass_views_of_the_leaf():
    x, w = random(2, 4, 9, 8), random(6, 36)
    tensor = leaf(w, f32)
    result = out_dtype(aten.conv2d.default, f32, x.to(DEVICE), tensor.view(6, 4, 3, 3))
    result.sum().backward()
    exact = w.double().requires_grad_()
    torch.nn.functional.conv2d(x.double(), exact.view(6, 4, 3, 3)).sum().backward()
    assert tensor.grad.dtype == f32 and "xla::cast" not in ir(tensor.grad)
    check(tensor.grad, exact.grad)


@fails_on_stock
def test_operands_of_two_dtypes_and_a_narrow_result_differentiate_by_casts():
    a, b = random(4, 8), random(8, 6, dtype=f32)
    for result_dtype in (f32, bf16, f64):
        tensors = leaf(a), leaf(b)
        result = out_dtype(aten.mm.default, result_dtype, *tensors)
        assert result.dtype == result_dtype
        result.sum().backward()
        assert [t.grad.dtype for t in tensors] == [bf16, f32]
        check(tensors[0].grad, b.double().sum(1).expand(4, 8))
        check(tensors[1].grad, a.double().sum(0)[:, None].expand(8, 6))


@fails_on_stock
def test_no_graph_no_gradient():
    a, b = leaf(random(4, 8)), leaf(random(8, 6))
    with torch.no_grad():
        product = out_dtype(aten.mm.default, f32, a, b)
    assert not product.requires_grad and "xla::dot_general" in ir(product)
    with torch.inference_mode():
        assert ir(out_dtype(aten.mm.default, f32, a, b)) == ir(product)
    assert ir(product) == ir(out_dtype(aten.mm.default, f32, a, b))


@fails_on_stock
def test_integers_under_autograd():
    x, w = random(5, 7, dtype=s8).to(DEVICE), random(3, 7, dtype=s8).to(DEVICE)
    assert "xla::dot_general" in ir(out_dtype(aten.linear.default, s32, x, w))  # nothing requires grad
    bias = leaf(random(3, dtype=f32))
    with pytest.raises(NotImplementedError, match=r"has no gradient here.*found torch.int8, torch.int8, torch.float32"):
        out_dtype(aten.linear.default, s32, x, w, bias)
    with torch.no_grad():
        assert out_dtype(aten.linear.default, s32, x, w, bias).dtype == s32
    with pytest.raises(NotImplementedError, match="has no gradient here"):
        out_dtype(aten.mm.default, s32, leaf(random(4, 8)), random(8, 6).to(DEVICE))
    scale, values = leaf(random(7, dtype=f32)), random(5, 7, dtype=s8)
    out_dtype(aten.mul.Tensor, f32, values.to(DEVICE), scale).sum().backward()
    check(scale.grad, values.double().sum(0))


@fails_on_stock
def test_forward_mode_is_refused():
    a, b = random(4, 8).to(DEVICE), random(8, 6).to(DEVICE)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(NotImplementedError, match="no forward-mode derivative: expected operands without"):
            out_dtype(aten.mm.default, f32, dual, b)


# ---- compiled, exported, functional, fake


@fails_on_stock
@pytest.mark.parametrize("name", ("mm", "linear 3d bias", "conv2d all", "transposed groups", "mul"))
def test_compiled_with_gradients(name):
    torch._dynamo.reset()
    case = (PRODUCTS | ELEMENTWISE)[name]
    cpu = operands(case, bf16)
    compiled = torch.compile(lambda *t: out_dtype(case.op, f32, *t, *case.rest), backend="openxla", fullgraph=True)
    exact = [t.double().requires_grad_() for t in cpu]
    expected = case.op(*exact, *case.rest)
    with torch.no_grad():
        check(compiled(*(t.to(DEVICE) for t in cpu)), expected)
    leaves = [leaf(t) for t in cpu]
    result = compiled(*leaves)
    check(result, expected)
    g = random(*expected.shape, dtype=f32, seed=9)
    result.backward(g.to(DEVICE))
    expected.backward(g.double())
    for tensor, reference in zip(leaves, exact, strict=True):
        assert tensor.grad.dtype == bf16
        check(tensor.grad, reference.grad)


@fails_on_stock
@pytest.mark.since("2.8", "gradients of dynamic sizes with openxla")
def test_compiled_for_dynamic_sizes_with_gradients():
    torch._dynamo.reset()
    case, w = PRODUCTS["conv2d"], leaf(random(6, 4, 3, 3))
    compiled = torch.compile(lambda x, w: out_dtype(case.op, f32, x, w), backend="openxla", dynamic=True)
    for batch in (2, 3):
        w.grad = None
        x, exact = random(batch, 4, 9, 8), w.detach().cpu().double().requires_grad_()
        result = compiled(x.to(DEVICE), w)
        result.sum().backward()
        expected = torch.nn.functional.conv2d(x.double(), exact)
        expected.sum().backward()
        check(result, expected)
        check(w.grad, exact.grad)


@passes_on_stock
def test_compiled_integers():
    a, b = random(4, 8, dtype=s8), random(8, 6, dtype=s8)
    compiled = torch.compile(lambda a, b: out_dtype(aten.mm.default, s32, a, b), backend="openxla", fullgraph=True)
    check(compiled(a.to(DEVICE), b.to(DEVICE)), (a.long() @ b.long()).double())


class Module(torch.nn.Module):
    def __init__(self, case, dtype):
        super().__init__()
        self.case, self.dtype = case, dtype

    def forward(self, *tensors):
        return out_dtype(self.case.op, self.dtype, *tensors, *self.case.rest)


def stablehlo(case, dtype):
    program = torch.export.export(Module(case, WIDE[dtype]), tuple(operands(case, dtype)))
    return exported_program_to_stablehlo(program)


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, s8), ids=("bf16", "s8"))
def test_exported_stablehlo_has_ops_of_mixed_dtypes(dtype):
    narrow, wide = {bf16: ("bf16", "f32"), s8: ("i8", "i32")}[dtype]
    text = stablehlo(PRODUCTS["mm"], dtype).get_stablehlo_text()
    assert f"(tensor<5x7x{narrow}>, tensor<7x3x{narrow}>) -> tensor<5x3x{wide}>" in text
    assert text.count("stablehlo.dot_general") == 1 and "convert" not in text
    text = stablehlo(PRODUCTS["conv2d"], dtype).get_stablehlo_text()
    assert f"(tensor<2x4x9x8x{narrow}>, tensor<6x4x3x3x{narrow}>) -> tensor<2x6x7x6x{wide}>" in text
    assert text.count("stablehlo.convolution") == 1 and "convert" not in text


class AllProducts(torch.nn.Module):
    def forward(self, *each):
        return [out_dtype(case.op, f32, *own, *case.rest) for case, own in zip(PRODUCTS.values(), each, strict=True)]


@fails_on_stock
def test_every_exported_product_is_one_op():
    """In one program: an export takes as long for one as for all."""
    each = tuple(operands(case, bf16) for case in PRODUCTS.values())
    text = exported_program_to_stablehlo(torch.export.export(AllProducts(), each)).get_stablehlo_text()
    assert text.count("stablehlo.dot_general") + text.count("stablehlo.convolution") == len(PRODUCTS)
    assert text.count("stablehlo.convert") == sum(len(case.shapes) - 2 for case in PRODUCTS.values())  # the biases


@passes_on_stock
def test_exported_program_runs():
    case = PRODUCTS["linear 3d bias"]
    cpu = operands(case, s8)
    check(stablehlo(case, s8)(*cpu), case.op(*(t.double() for t in cpu)))


@fails_on_stock
def test_a_functionalized_graph_runs_natively_on_xla():
    def program(a, b):
        return out_dtype(aten.mm.default, f32, a, b).add_(1)

    a, b = random(4, 8), random(8, 6)
    graph = make_fx(torch.func.functionalize(program))(a, b)
    assert [str(n.target) for n in graph.graph.nodes if n.op == "call_function"] == ["out_dtype", "aten.add.Tensor"]
    result = graph(a.to(DEVICE), b.to(DEVICE))
    assert "xla::dot_general" in ir(result) and "xla::cast" not in ir(result)
    check(result, a.double() @ b.double() + 1)


@fails_on_stock
@every_op
def test_fake_tensors_have_shapes_and_gradients(case):
    expected = case.op(*(torch.empty(s) for s in case.shapes), *case.rest).shape
    with torch._subclasses.FakeTensorMode():
        fakes = [torch.empty(s, dtype=bf16, device=DEVICE, requires_grad=True) for s in case.shapes]
        result = out_dtype(case.op, f32, *fakes, *case.rest)
        assert (result.shape, result.dtype, result.device) == (expected, f32, DEVICE)
        result.sum().backward()
        assert [(t.grad.shape, t.grad.dtype) for t in fakes] == [(t.shape, bf16) for t in fakes]


# ---- the operators beneath


@fails_on_stock
@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"input": (2, 5, 9, 9)}, "an input with 4 channels, as the weight has, but found 5"),
        ({"input": (4, 9, 9)}, r"a weight of 3 dimensions like the input's"),
        ({"input": (4,)}, r"an input of \(batch, channels, at least one spatial dimension\), but found \[4\]"),
        ({"input": (2, 4, 2, 2)}, r"a kernel that fits into the padded input, but found an output of \[2, 6, 0, 0\]"),
        ({"stride": [0]}, r"stride of at least 1, but found \[0\]"),
        ({"padding": [-1, 0]}, r"padding of at least 0, but found \[-1, 0\]"),
        ({"dilation": [1, 1, 1]}, r"1 or 2 numbers as dilation, but found \[1, 1, 1\]"),
        ({"groups": 4}, "4 groups to divide the weight's first dimension, but found 6"),
        ({"groups": 0}, "groups of at least 1, but found 0"),
    ),
)
@pytest.mark.parametrize("device", (DEVICE, torch.device("meta")), ids=("xla", "meta"))
def test_convolution_says_what_it_expected(change, message, device):
    arguments = {
        "stride": [1],
        "padding": [0],
        "dilation": [1],
        "transposed": False,
        "output_padding": [0],
        "groups": 1,
        **{k: v for k, v in change.items() if k != "input"},
    }
    image = torch.zeros(change.get("input", (2, 4, 9, 9)), dtype=bf16, device=device)
    weight = torch.zeros(6, 4, 3, 3, dtype=bf16, device=device)
    with pytest.raises(RuntimeError, match=f"convolution: expected {message}"):
        torch.ops.castoff.convolution(image, weight, **arguments, preferred_element_type=f32)


@fails_on_stock
def test_convolution_weight_grad_refuses_a_gradient_of_another_size():
    grad, image = (torch.zeros(s, dtype=bf16, device=DEVICE) for s in ((2, 6, 7, 8), (2, 4, 9, 9)))
    with pytest.raises(RuntimeError, match=r"a gradient of the size \[2, 6, 7, 7\] of the output, but found \[2, 6, 7"):
        torch.ops.castoff.convolution_weight_grad(grad, image, [6, 4, 3, 3], [1], [0], [1], False, 1, f32)


@fails_on_stock
def test_convolution_refuses_a_dtype_that_it_cannot_name():
    x, w = (torch.zeros(s, dtype=torch.bool).to(DEVICE) for s in ((2, 4, 9, 9), (6, 4, 3, 3)))
    with pytest.raises(TypeError, match=r"torch.float64, torch.bfloat16, .* but found torch.bool"):
        torch.ops.castoff.convolution(x, w, [1], [0], [1], False, [0], 1, s32)


# ---- the build around it

SPMD = """
import numpy as np, torch, torch_xla
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
xr.use_spmd()
torch_xla._XLAC._xla_get_devices()  # else torch 2.7 has no queue for them in a backward pass
device, mesh = torch_xla.device(), xs.Mesh(np.arange(4), (4,), ("model",))
x, w = torch.randn(8, 16, 6, 6).bfloat16(), torch.randn(12, 16, 3, 3).bfloat16()
exact = x.double().requires_grad_(), w.double().requires_grad_()
expected = torch.nn.functional.conv2d(*exact)
g = torch.randn(expected.shape)
expected.backward(g.double())
def sharded(cpu, dimension):
    tensor = cpu.to(device)
    if dimension is not None:
        spec = ["model" if i == dimension else None for i in range(4)]
        xs.mark_sharding(tensor, mesh, tuple(spec))
    tensor.requires_grad_()
    tensor.grad_dtype = torch.float32
    return tensor
for dimensions in ((0, None), (1, 1), (None, 0), (0, 0), (2, None)):
    leaves = [sharded(*pair) for pair in zip((x, w), dimensions)]
    result = torch.ops.higher_order.out_dtype(torch.ops.aten.conv2d.default, torch.float32, *leaves)
    result.backward(g.to(device))
    torch_xla.sync()
    for actual, reference in zip((result, *(t.grad for t in leaves)), (expected, *(t.grad for t in exact))):
        assert (actual.detach().cpu().double() - reference).norm() / reference.norm() < 1e-6
print("done")
"""

OFF = """
import torch, torch_xla
device = torch_xla.device()
a, b = (torch.zeros(4, 4, dtype=torch.bfloat16, device=device) for _ in range(2))
product = torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.float32, a, b)
print("dot_general" in torch_xla._XLAC._get_xla_tensors_text([product]))
print(hasattr(torch.ops.castoff, "convolution"))
"""


@fails_on_stock
def test_sharded_operands():
    done = forked("-c", SPMD, CPU_NUM_DEVICES="4")
    assert done.stdout == "done\n"


@fails_on_stock
@pytest.mark.slow
def test_functionalization_off():
    done = completed("-c", OFF, XLA_DISABLE_FUNCTIONALIZATION="1")
    assert done.stdout.split() == ["True", "True"]
