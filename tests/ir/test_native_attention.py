"""Attention of bfloat16 and float16 tensors from products of these: patches/torch_xla/native-attention."""

import functools
import itertools
import os
import re

import pytest
import torch
import torch_xla
from ir_text import hlo, ir
from marks import fails_on_stock, passes_on_stock
from other_process import run, run_tests
from small_transformer import casts, gradients, loss_of, model_and_data
from tensors import DEVICE, bf16, f16, f32, random
from torch import nn
from torch.nn import functional as F
from torch_xla import experimental

both_dtypes = pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
SIZES = (2, 3, 5, 4)


@pytest.fixture
def narrow():
    """The process rounds the weights of attention."""
    experimental.narrow_attention(True)
    yield
    experimental.narrow_attention("auto")


def operands(*sizes, dtype=bf16, grad=True):
    """Query, key and value: on the CPU, and the same on XLA."""
    sizes = sizes or (SIZES,) * 3
    cpu = [random(*size, dtype=dtype, seed=seed) for seed, size in enumerate(sizes)]
    return cpu, [t.to(DEVICE).requires_grad_(grad) for t in cpu]


def dots(*tensors):
    """The dtypes of each product in the pending HLO: of its operands and of its result."""
    defined, found = {}, []
    for line in hlo(*tensors).splitlines():
        name, _, value = line.strip().removeprefix("ROOT ").partition(" = ")
        if not value:
            continue
        defined[name] = value.split("[")[0]
        if " dot(" in value:
            left, right = value.split(" dot(")[1].split(")")[0].split(", ")
            found.append(f"{defined[left]} {defined[right]} {defined[name]}")
    return found


# ---- the graph


@fails_on_stock
def test_forward():
    _, (q, k, v) = operands(grad=False)
    ir(F.scaled_dot_product_attention(q, k, v)).expect("""\
%0 = bf16[2,3,5,4] xla::device_data()
%1 = f32[] xla::device_data()
%2 = bf16[2,3,5,4] xla::device_data()
%3 = bf16[2,3,5,4] xla::device_data()
%4 = f32[2,3,5,5] xla::dot_general(%3, %2)
%5 = f32[2,3,5,5] aten::mul(%4, %1)
%6 = f32[2,3,5,5] aten::softmax(%5)
%7 = f32[2,3,5,4] xla::dot_general(%6, %0)
%8 = bf16[2,3,5,4] xla::cast(%7)
return %8
""")


@fails_on_stock
def test_backward():
    _, leaves = operands()
    grad = random(*SIZES, seed=3).to(DEVICE)
    F.scaled_dot_product_attention(*leaves, scale=1.0).backward(grad)
    ir(*(t.grad for t in leaves)).expect("""\
%0 = bf16[2,3,5,4] xla::device_data()
%1 = f32[] prim::Constant()
%2 = bf16[2,3,5,4] xla::device_data()
%3 = bf16[2,3,5,4] xla::device_data()
%4 = bf16[2,3,5,4] xla::device_data()
%5 = f32[2,3,5,5] xla::dot_general(%4, %0)
%6 = f32[2,3,5,5] aten::softmax(%5)
%7 = f32[2,3,5,4] xla::dot_general(%6, %3)
%8 = f32[2,3,5] xla::dot_general(%7, %2)
%9 = f32[2,3,5,1] aten::view(%8)
%10 = f32[2,3,5,5] xla::dot_general(%2, %3)
%11 = f32[2,3,5,5] aten::sub(%10, %9, %1)
%12 = f32[2,3,5,5] aten::mul(%6, %11)
%13 = f32[2,3,5,4] xla::dot_general(%12, %0)
%14 = bf16[2,3,5,4] xla::cast(%13)
%15 = f32[2,3,5,4] xla::dot_general(%12, %4)
%16 = bf16[2,3,5,4] xla::cast(%15)
%17 = f32[2,3,5,4] xla::dot_general(%6, %2)
%18 = bf16[2,3,5,4] xla::cast(%17)
return %14, %16, %18
""")


@passes_on_stock
def test_a_mask_of_numbers_is_read_by_the_scores_alone():
    """It may be as large as they are: which rows it leaves no key is in them, too."""
    _, (q, k, v) = operands(grad=False)
    text = ir(F.scaled_dot_product_attention(q, k, v, random(1, 3, 5, 5, dtype=f32).to(DEVICE)))
    (mask,) = re.findall(r"(%\d+) = f32\[1,3,5,5\] xla::device_data", text)
    assert len(re.findall(rf"{mask}\b", text)) == 2, text  # its definition, and the sum


@fails_on_stock
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_narrow(narrow, dropout):
    _, leaves = operands()
    grad = random(*SIZES, seed=3).to(DEVICE)
    result = F.scaled_dot_product_attention(*leaves, dropout_p=dropout)
    assert dots(result) == ["bf16 bf16 f32"] * 2
    result.backward(grad)
    assert dots(*(t.grad for t in leaves)) == ["bf16 bf16 f32"] * 7


WIDE, NARROW = ["bf16 bf16 f32", "f32 bf16 f32"], ["bf16 bf16 f32"] * 2


@fails_on_stock
def test_on_a_tpu_at_default_precision_the_weights_are_rounded(tpu, set_matmul_precision):
    """For the products alone: there the matrix unit rounds float32 operands; at any other precision it does not."""
    sizes = (*SIZES[:3], 64)
    _, leaves = operands(*(sizes,) * 3)
    grad = random(*sizes, seed=3).to(DEVICE)
    for asked, expected in {"default": NARROW, "high": WIDE, "highest": WIDE}.items():
        set_matmul_precision(asked)
        result = F.scaled_dot_product_attention(*leaves)
        assert dots(result) == expected
        gradients = dots(*torch.autograd.grad(result, leaves, grad))
        assert gradients.count("f32 bf16 f32") == (1 if expected == NARROW else 5)  # 1: the row sums
        assert not experimental.is_narrow_attention()


@fails_on_stock
@pytest.mark.parametrize(
    ("tokens", "computed", "saved"),
    [(1024, "qk", "f32"), (1200, "qk", "bf16"), (1200, "q", "f32"), (1200, "", "f32"), (2100, "qk", "f32")],
)
def test_on_a_tpu_what_waits_is_rounded_where_it_crowds(tpu, tokens, computed, saved):
    """Float32 weights of a third of the memory next to the cores to all of it, unless attention is all of the graph."""
    shape = (1, 8, tokens, 4)
    leaves = [torch.zeros(shape, dtype=bf16).to(DEVICE).requires_grad_() for _ in range(3)]
    query, key = (leaf.clone() if name in computed else leaf for name, leaf in zip("qk", leaves, strict=False))
    result = F.scaled_dot_product_attention(query, key, leaves[2])
    assert dots(result) == NARROW
    result.backward(torch.zeros(shape, dtype=bf16).to(DEVICE))
    gradients = dots(*(t.grad for t in leaves))
    assert gradients.count("f32 bf16 f32") == (saved == "f32")  # the row sums, of the result


@fails_on_stock
def test_products_have_the_precision_that_is_set(set_matmul_precision):
    _, leaves = operands()
    set_matmul_precision("highest")
    result = F.scaled_dot_product_attention(*leaves)
    result.backward(random(*SIZES, seed=3).to(DEVICE))
    tensors = [result, *(t.grad for t in leaves)]
    assert "f32 f32 f32" not in dots(*tensors)
    text = torch_xla._XLAC._get_xla_tensors_hlo(tensors)
    lines = [line for line in text.splitlines() if " dot(" in line]
    assert len(lines) == 7 and all("operand_precision={highest,highest}" in line for line in lines)


@fails_on_stock
@pytest.mark.parametrize("options", [{"scale": 1.0}, {"scale": -0.25}, {}], ids=["1", "-1/4", "of 256"])
def test_on_a_tpu_the_weights_of_an_exact_scale_are_wide(tpu, options):
    """Its root is a power of two: a TPU computes the scores of torch's formula exactly."""
    _, leaves = operands(*((2, 3, 5, 256),) * 3, grad=False)
    assert dots(F.scaled_dot_product_attention(*leaves, **options)) == WIDE


def by_torch_on_a_tpu(q, k, v, grad, scale):
    """The result of torch's formula and its gradients, as a TPU computes them: products of rounded operands."""

    def product(a, b):
        return a.bfloat16().float() @ b.bfloat16().float()

    root = scale**0.5
    q, k, v, grad = (q.float() * root, k.float() * root, v.float(), grad.float())
    p = product(q, k.mT).softmax(-1)
    of_p = product(grad, v.mT)
    of_scores = p * (of_p - (p * of_p).sum(-1, keepdim=True))
    gradients = product(of_scores, k) * root, product(of_scores.mT, q) * root, product(p.mT, grad)
    return [t.bfloat16() for t in (product(p, v), *gradients)]


@fails_on_stock
@pytest.mark.parametrize("width", [8, 64, 128])
@pytest.mark.parametrize("peaked", [1, 3])
@pytest.mark.parametrize("choice", ["auto", True])
def test_on_a_tpu_as_exact_as_torchs_formula(tpu, width, peaked, choice, request):
    if choice is True:  # what auto is where the weights crowd
        request.getfixturevalue("narrow")
    cpu, _ = operands(*((2, 4, 256, width),) * 3)
    cpu[0] *= peaked
    grad = random(*cpu[0].shape, seed=3)
    attend = F.scaled_dot_product_attention
    exact = oracle(attend, cpu, None, grad)
    ours = errors(computed(attend, cpu, None, grad), exact)
    stock = errors(by_torch_on_a_tpu(*cpu, grad, width**-0.5), exact)
    assert all(found <= limit for found, limit in zip(ours, stock, strict=True)), (ours, stock)


@fails_on_stock
@pytest.mark.parametrize(("choice", "expected"), [(False, WIDE), (True, NARROW)])
@pytest.mark.parametrize("asked", ["default", "highest"])
def test_a_choice_holds_on_every_device(choice, expected, asked, tpu, set_matmul_precision):
    _, leaves = operands(grad=False)
    set_matmul_precision(asked)
    experimental.narrow_attention(choice)
    try:
        assert dots(F.scaled_dot_product_attention(*leaves)) == expected
    finally:
        experimental.narrow_attention("auto")


@fails_on_stock
def test_float16_weights_are_wide_on_a_tpu(tpu):
    """Rounded to float16, which has not float32's range, their gradients could overflow."""
    _, leaves = operands(grad=False, dtype=f16)
    assert dots(F.scaled_dot_product_attention(*leaves)) == ["f16 f16 f32", "f32 f16 f32"]


@fails_on_stock
def test_a_graph_of_one_form_is_not_run_as_another(tpu):
    _, leaves = operands(Q, K, K)
    grad = random(*Q, seed=3).to(DEVICE)

    def hash_for(choice):
        experimental.narrow_attention(choice)
        of_query = torch.autograd.grad(F.scaled_dot_product_attention(*leaves), leaves, grad)[0]
        return torch_xla._XLAC._get_graph_hash([of_query])

    auto, wide, narrow, again = map(hash_for, ("auto", False, True, "auto"))
    assert auto == again
    assert len({auto, wide, narrow}) == 3


@fails_on_stock
def test_what_is_no_choice():
    with pytest.raises(ValueError, match='expected True, False or "auto", found 2'):
        experimental.narrow_attention(2)


@fails_on_stock
def test_no_copy_of_a_key_that_heads_share():
    _, (q, k, v) = operands((2, 6, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))
    result = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert "6,7,4" not in ir(result)
    result.sum().backward()
    assert "6,7,4" not in ir(q.grad, k.grad, v.grad)


# ---- values


def oracle(attend, cpu, mask, grad):
    """Attention in float64 of what the operands hold, and its gradients."""
    leaves = [t.double().requires_grad_() for t in cpu]
    if mask is not None and mask.is_floating_point():
        mask = mask.double()
    result = attend(*leaves, mask)
    result.backward(grad.double())
    return [result.detach(), *(t.grad for t in leaves)]


def computed(attend, cpu, mask, grad):
    leaves = [t.to(DEVICE).requires_grad_() for t in cpu]
    result = attend(*leaves, mask if mask is None else mask.to(DEVICE))
    result.backward(grad.to(DEVICE))
    return [result.detach(), *(t.grad for t in leaves)]


def by_torch(q, k, v, mask, is_causal=False, scale=None, enable_gqa=False):
    """What stock computes: torch's formula, which takes a mask as numbers."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    math = torch.ops.aten._scaled_dot_product_attention_math
    return math(q, k, v, mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]


def errors(found, exact):
    torch_xla.sync()  # one program for all
    return [(a.cpu().double() - b).abs().mean().item() for a, b in zip(found, exact, strict=True)]


T, S = 16, 24
LOWER = torch.ones(T, S).tril().bool()
SOME_KEYS = random(2, 1, 1, S, seed=7, dtype=f32) > 0
NO_KEY = LOWER.clone().index_fill_(0, torch.tensor([0, 3]), False)
BIAS = random(2, 4, T, S, seed=8, dtype=f32)
Q, K, HALF, ONE = (2, 4, T, 8), (2, 4, S, 8), (2, 2, S, 8), (2, 1, S, 8)
FORMS = {
    "plain": (Q, K, K, None, {}),
    "float16": (Q, K, K, None, {"dtype": f16}),
    "float16, masked": (Q, K, K, BIAS.half(), {"dtype": f16}),
    "causal": (Q, K, K, None, {"is_causal": True}),
    "causal, more queries": ((2, 4, S, 8), Q, Q, None, {"is_causal": True}),
    "bool mask": (Q, K, K, LOWER, {}),
    "mask of keys": (Q, K, K, SOME_KEYS, {}),
    "queries without a key": (Q, K, K, NO_KEY, {}),
    "additive mask": (Q, K, K, BIAS.to(bf16), {}),
    "additive float32 mask": (Q, K, K, BIAS, {}),
    "additive mask, 2-d, infinite": (Q, K, K, torch.zeros(T, S).masked_fill(~NO_KEY, -torch.inf), {}),
    "scale": (Q, K, K, None, {"scale": 0.3}),
    "negative scale": (Q, K, K, None, {"scale": -0.3}),
    "grouped": (Q, HALF, HALF, None, {"enable_gqa": True}),
    "grouped, masked": (Q, HALF, HALF, LOWER, {"enable_gqa": True}),
    "grouped, causal": (Q, HALF, HALF, None, {"enable_gqa": True, "is_causal": True}),
    "one head of key and value": (Q, ONE, ONE, BIAS, {}),
    "one key for the batch": (Q, K[1:], (1, *K[1:]), None, {}),
    "value of another width": (Q, K, (2, 4, S, 5), None, {}),
    "3-d": (Q[1:], K[1:], K[1:], None, {}),
    "3-d, causal": (Q[1:], K[1:], K[1:], None, {"is_causal": True}),
    "2-d": (Q[2:], K[2:], K[2:], LOWER, {}),
    "5-d": ((2, *Q), (2, *K), (2, *K), None, {}),
    "odd": ((1, 3, 1, 7), (1, 3, 13, 7), (1, 3, 13, 3), None, {}),
}


@fails_on_stock
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_as_exact_as_torchs_formula(form):
    """By mean error against float64; what both round is the result, and what differs the order of sums."""
    q, k, v, mask, options = form
    dtype = options.get("dtype", bf16)
    options = {name: value for name, value in options.items() if name != "dtype"}
    cpu, _ = operands(q, k, v, dtype=dtype)
    grad = random(*q[:-1], v[-1], dtype=dtype, seed=3)

    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, **options)

    def stock(q, k, v, mask):
        return by_torch(q, k, v, mask, **options)

    exact = oracle(attend, cpu, mask, grad)
    ours = computed(attend, cpu, mask, grad)
    assert not any("f32 f32" in dot for dot in dots(*ours))
    error, reference = errors(ours, exact), errors(computed(stock, cpu, mask, grad), exact)
    limits = [1.05 * r + 1e-7 for r in reference]
    assert all(e <= limit for e, limit in zip(error, limits, strict=True)), (error, reference)


@fails_on_stock
@both_dtypes
def test_narrow_rounds_the_weights_only(narrow, dtype):
    cpu, _ = operands(Q, K, K, dtype=dtype)
    grad = random(*Q, dtype=dtype, seed=3)
    exact = oracle(F.scaled_dot_product_attention, cpu, LOWER, grad)
    ours = computed(F.scaled_dot_product_attention, cpu, LOWER, grad)
    for found, wanted in zip(ours, exact, strict=True):
        error = (found.cpu().double() - wanted).abs().max()
        assert error <= 2 * torch.finfo(dtype).eps * wanted.abs().max()


@fails_on_stock
def test_scores_do_not_overflow_float16():
    q = torch.full((1, 2, 3, 64), 200.0, dtype=f16).to(DEVICE)
    result = F.scaled_dot_product_attention(q, q, q)
    assert dots(result)[0] == "f16 f16 f32"
    assert torch.equal(result.cpu(), q.cpu())


# ---- gradients


@fails_on_stock
@pytest.mark.parametrize("dtype", [bf16, f32])
def test_the_gradient_of_a_mask(dtype):
    cpu, (q, k, v) = operands(Q, K, K)
    bias = random(4, 1, S, dtype=dtype, seed=5)
    grad = random(*Q, seed=3)
    mask = bias.to(DEVICE).requires_grad_()
    result = F.scaled_dot_product_attention(q, k, v, mask)
    result.backward(grad.to(DEVICE))
    exact = bias.double().requires_grad_()
    F.scaled_dot_product_attention(*(t.double() for t in cpu), exact).backward(grad.double())
    assert mask.grad.dtype == dtype and "f32 f32 f32" not in dots(result)
    torch.testing.assert_close(mask.grad.cpu().double(), exact.grad, rtol=2e-2, atol=2e-2)


@fails_on_stock
@pytest.mark.parametrize("wanted", [c for n in (1, 2) for c in itertools.combinations(range(3), n)], ids=str)
def test_of_some_operands(wanted):
    cpu, leaves = operands(Q, K, K)
    for i, t in enumerate(leaves):
        t.requires_grad_(i in wanted)
    grad = random(*Q, seed=3)
    F.scaled_dot_product_attention(*leaves).backward(grad.to(DEVICE))
    exact = oracle(F.scaled_dot_product_attention, cpu, None, grad)[1:]
    found = dots(*(leaves[i].grad for i in wanted))
    assert len(found) == {(2,): 2}.get(wanted, 4 + len(wanted)) and "f32 f32 f32" not in found
    for i, t in enumerate(leaves):
        assert (t.grad is not None) == (i in wanted)
        if i in wanted:
            torch.testing.assert_close(t.grad.cpu().double(), exact[i], rtol=2e-2, atol=2e-2)


@fails_on_stock
@pytest.mark.parametrize("mask", [None, LOWER, BIAS], ids=["plain", "bool", "additive"])
def test_gradients_of_gradients(mask):
    cpu, leaves = operands(Q, K, K)
    grad = random(*Q, seed=3)

    def second(attend, leaves, mask, grad):
        result = attend(*leaves, mask)
        first = torch.autograd.grad(result, leaves, grad, create_graph=True)
        return torch.autograd.grad(sum(t.float().square().sum() for t in first), leaves)

    on_xla = mask if mask is None else mask.to(DEVICE)
    found = second(F.scaled_dot_product_attention, leaves, on_xla, grad.to(DEVICE))
    assert "f32 f32 f32" not in dots(F.scaled_dot_product_attention(*leaves))
    wide = mask.double() if mask is not None and mask.is_floating_point() else mask
    exact = second(by_torch, [t.double().requires_grad_() for t in cpu], wide, grad.double())
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.cpu().double(), b.double(), rtol=5e-2, atol=5e-2 * b.abs().max().item())


@fails_on_stock
def test_gradients_of_leaves_that_want_float32():
    cpu, leaves = operands(Q, K, K)
    for t in leaves:
        t.grad_dtype = f32
    grad = random(*Q, seed=3)
    F.scaled_dot_product_attention(*leaves).backward(grad.to(DEVICE))
    exact = oracle(F.scaled_dot_product_attention, cpu, None, grad)[1:]
    for t, wanted in zip(leaves, exact, strict=True):
        assert t.grad.dtype == f32
        torch.testing.assert_close(t.grad.cpu().double(), wanted, rtol=1e-5, atol=1e-5)


@fails_on_stock
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    _, leaves = operands(Q, K, K)
    grad = random(*Q, seed=3).to(DEVICE)
    F.scaled_dot_product_attention(*leaves).backward(grad)
    expected = [t.grad.cpu() for t in leaves]
    for t in leaves:
        t.grad = None
    attend = F.scaled_dot_product_attention
    result = torch.utils.checkpoint.checkpoint(attend, *leaves, use_reentrant=reentrant)
    result.backward(grad)
    assert not any("f32 f32" in dot for dot in dots(*(t.grad for t in leaves)))
    for t, wanted in zip(leaves, expected, strict=True):
        assert torch.equal(t.grad.cpu(), wanted)


# ---- dropout


def with_dropout(attend, cpu, grad):
    leaves = [t.to(DEVICE).requires_grad_() for t in cpu]
    torch_xla.manual_seed(5)
    result = attend(*leaves)
    result.backward(grad.to(DEVICE))
    torch_xla.sync()  # one program for all
    return [t.cpu().double() for t in (result, *(t.grad for t in leaves))]


@fails_on_stock
@pytest.mark.parametrize("key", [K, HALF], ids=["heads", "grouped"])
def test_dropout_drops_what_stock_drops(key):
    cpu, _ = operands(Q, key, key)
    grad = random(*Q, seed=3)

    def ours(q, k, v):
        result = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, enable_gqa=True)
        assert not any("f32 f32" in dot for dot in dots(result))
        return result

    def stock(q, k, v):
        math = torch.ops.aten._scaled_dot_product_attention_math
        return math(q, k, v, None, 0.3, False, None, enable_gqa=True)[0]

    for a, b in zip(with_dropout(ours, cpu, grad), with_dropout(stock, cpu, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@fails_on_stock
def test_dropout_under_gradients_of_gradients():
    """The same weights are dropped when the weights are computed again: the result is linear in the value."""
    _, (q, k, v) = operands(Q, K, K)
    result = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert not any("f32 f32" in dot for dot in dots(result))
    ones = torch.ones_like(result).requires_grad_()
    (of_value,) = torch.autograd.grad(result, v, ones, create_graph=True)
    (back,) = torch.autograd.grad(of_value, ones, v.detach())
    torch.testing.assert_close(back.cpu(), result.detach().cpu(), rtol=2e-2, atol=2e-2)


# ---- on a TPU: in slices of queries, and groups of heads with a dimension of their own

LONG, LONGER = (1, 1, 2054, 8), (1, 1, 2200, 8)
IN_SLICES = {  # each form's program takes seconds to compile
    "3-d": (LONG[1:], LONG[1:], LONG[1:], {}),
    "more keys, exact scale": ((*LONG[:3], 40), (*LONGER[:3], 40), (*LONGER[:3], 40), {"scale": 1 / 16}),
    "more queries, scale": (LONGER, LONG, LONG, {"scale": 0.3}),
    "grouped, float16": ((1, 2, *LONG[2:]), LONG, LONG, {"enable_gqa": True, "dtype": f16}),
    "one key for the batch, value of another width": ((2, *LONG[1:]), LONG, (*LONG[1:3], 5), {}),
}


def sizes_of_dots(*tensors):
    """Of the results of all products in the pending HLO."""
    return re.findall(r" = \w+\[([\d,]*)\]\S* dot\(", hlo(*tensors))


def causal(q, k, v, mask, **options):
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=True, **options)


@fails_on_stock
@pytest.mark.parametrize("form", IN_SLICES.values(), ids=IN_SLICES.keys())
def test_slices_are_as_exact_as_the_whole(tpu, form):
    """By mean error against float64, of the form that other devices have: with weights of the same kind."""
    q, k, v, options = form
    dtype = options.get("dtype", bf16)
    options = {name: value for name, value in options.items() if name != "dtype"}
    cpu, _ = operands(q, k, v, dtype=dtype)
    grad = random(*q[:-1], v[-1], dtype=dtype, seed=3)
    attend = functools.partial(causal, **options)
    exact = oracle(attend, cpu, None, grad)
    ours = computed(attend, cpu, None, grad)
    assert not any(f"{q[-2]},{k[-2]}" in size for size in sizes_of_dots(*ours))
    # What a TPU rounds, the whole form here rounds when it is asked to.
    rounds = dtype == bf16 and options.get("scale") != 1 / 16
    found = errors(ours, exact)
    tpu(False)
    experimental.narrow_attention(rounds)
    try:
        whole = computed(attend, cpu, None, grad)
        assert any(f"{q[-2]},{k[-2]}" in size or "4108,2054" in size for size in sizes_of_dots(*whole))
        limits = [1.05 * error + 1e-7 for error in errors(whole, exact)]
    finally:
        experimental.narrow_attention("auto")
    assert all(error <= limit for error, limit in zip(found, limits, strict=True)), (found, limits)


@fails_on_stock
def test_short_sequences_are_whole(tpu):
    _, leaves = operands(*((1, 1, 2047, 8),) * 3, grad=False)
    assert sizes_of_dots(causal(*leaves, None))[0] == "1,1,2047,2047"


@fails_on_stock
def test_slices_compute_no_scores_of_later_keys(tpu):
    """Each is multiplied with the keys up to its last one; the backward pass has them again."""
    _, leaves = operands(*((1, 1, 2048, 8),) * 3)
    scores = [f"1,1,1024,{keys}" for keys in (1024, 2048)]
    result = causal(*leaves, None)
    assert [size for size in sizes_of_dots(result) if not size.endswith(",8")] == scores
    result.backward(random(1, 1, 2048, 8, seed=3).to(DEVICE))
    found = sizes_of_dots(result, *(t.grad for t in leaves))
    assert sorted(size for size in found if size in scores) == sorted(scores * 3)
    assert hlo(*(t.grad for t in leaves)).count(" opt-barrier(") == 1


@fails_on_stock
def test_dropout_in_slices_drops_what_stock_drops(tpu):
    cpu, _ = operands(LONG, LONG, LONG)
    grad = random(*LONG, seed=3)

    def stock(q, k, v):
        return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, None, 0.3, True)[0]

    def ours(q, k, v):
        return causal(q, k, v, None, dropout_p=0.3)

    for a, b in zip(with_dropout(ours, cpu, grad), with_dropout(stock, cpu, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@fails_on_stock
def test_slices_of_some_operands(tpu):
    cpu, leaves = operands(LONG, LONG, LONG)
    grad = random(*LONG, seed=3)
    result = causal(*leaves, None)
    chosen = [(0,), (1,), (2,), (0, 2), (1, 2)]
    found = [
        torch.autograd.grad(result, [leaves[i] for i in wanted], grad.to(DEVICE), retain_graph=True)
        for wanted in chosen
    ]
    assert "2054,2054" not in " ".join(sizes_of_dots(*itertools.chain(*found)))
    torch_xla.sync()
    exact = oracle(causal, cpu, None, grad)[1:]
    for wanted, own in zip(chosen, found, strict=True):
        for i, t in zip(wanted, own, strict=True):
            torch.testing.assert_close(t.cpu().double(), exact[i], rtol=2e-2, atol=2e-2)


@fails_on_stock
def test_gradients_of_gradients_of_slices(tpu):
    """All weights at once, as for fewer tokens."""
    cpu, leaves = operands(*((1, 1, 2048, 4),) * 3)
    grad = random(1, 1, 2048, 4, seed=3)

    def second(attend, leaves, grad):
        first = torch.autograd.grad(attend(*leaves, None, is_causal=True), leaves, grad, create_graph=True)
        return torch.autograd.grad(sum(t.float().square().sum() for t in first), leaves)

    assert "2048,2048" not in " ".join(sizes_of_dots(causal(*leaves, None)))
    found = second(F.scaled_dot_product_attention, leaves, grad.to(DEVICE))
    torch_xla.sync()
    exact = second(by_torch, [t.double().requires_grad_() for t in cpu], grad.double())
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.cpu().double(), b.double(), rtol=5e-2, atol=5e-2 * b.abs().max().item())


@fails_on_stock
def test_slices_without_autograd(tpu):
    _, leaves = operands(LONG, LONG, LONG)
    results = [causal(*leaves, None).detach()]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            results.append(causal(*leaves, None))
    assert "2054,2054" not in " ".join(sizes_of_dots(*results))
    torch_xla.sync()
    expected, *others = (t.cpu() for t in results)
    assert all(torch.equal(t, expected) for t in others)


@fails_on_stock
@pytest.mark.parametrize("how", ["checkpoint", pytest.param("compile", marks=pytest.mark.slow)])
def test_slices_where_they_are_called(tpu, how):
    cpu, leaves = operands(LONG, LONG, LONG)
    grad = random(*LONG, seed=3)
    expected = computed(causal, cpu, None, grad)
    assert "2054,2054" not in " ".join(sizes_of_dots(*expected))
    if how == "checkpoint":
        result = torch.utils.checkpoint.checkpoint(causal, *leaves, None, use_reentrant=False)
    else:
        result = torch.compile(causal, backend="openxla")(*leaves, None)
    result.backward(grad.to(DEVICE))
    torch_xla.sync()
    found = [result.detach(), *(t.grad for t in leaves)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-2, atol=1e-2)


WIDER, MORE, FEWER = (2, 4, 16, 40), (2, 4, 24, 40), (2, 2, 16, 40)
EXACT = {"scale": 1 / 16}
AGAIN = {
    "plain": (WIDER, MORE, MORE, EXACT),
    "causal, more keys": (WIDER, MORE, MORE, {"is_causal": True, **EXACT}),
    "causal, more queries": (MORE, WIDER, WIDER, {"is_causal": True, **EXACT}),
    "grouped": (WIDER, FEWER, FEWER, {"enable_gqa": True, **EXACT}),
    "one key for the batch, value of another width": (WIDER, (1, *MORE[1:]), (*MORE[:3], 5), EXACT),
    "3-d": (WIDER[1:], MORE[1:], MORE[1:], EXACT),
}


@fails_on_stock
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("form", AGAIN.values(), ids=AGAIN.keys())
def test_wide_weights_of_an_exact_scale_are_computed_again_on_a_tpu(tpu, form, alone):
    """They wait for the backward pass only where attention is all of the graph, and are as exact in every form."""
    q, k, v, options = form
    cpu, leaves = operands(q, k, v)
    grad = random(*q[:-1], v[-1], seed=3)

    def attend(q, k, v, mask):
        q, k = (q, k) if alone else (q.clone(), k.clone())
        return F.scaled_dot_product_attention(q, k, v, mask, **options)

    attend(*leaves, None).backward(grad.to(DEVICE))
    assert hlo(*(t.grad for t in leaves)).count(" opt-barrier(") == (not alone)
    exact = oracle(attend, cpu, None, grad)
    found = errors(computed(attend, cpu, None, grad), exact)
    experimental.narrow_attention(False)
    try:
        whole = computed(attend, cpu, None, grad)
        assert " opt-barrier(" not in hlo(*whole)
        limits = [1.05 * error + 1e-7 for error in errors(whole, exact)]
    finally:
        experimental.narrow_attention("auto")
    assert all(error <= limit for error, limit in zip(found, limits, strict=True)), (found, limits)


@fails_on_stock
@pytest.mark.parametrize("alone", [False, True])
def test_dropout_of_what_is_computed_again(tpu, alone):
    cpu, _ = operands(WIDER, MORE, MORE)
    grad = random(*WIDER, seed=3)

    def stock(q, k, v):
        return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, None, 0.3, **EXACT)[0]

    def ours(q, k, v):
        q, k = (q, k) if alone else (q.clone(), k.clone())
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, **EXACT)

    for a, b in zip(with_dropout(ours, cpu, grad), with_dropout(stock, cpu, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


GROUPED = {
    "plain": (HALF, None, {}),
    "one head": (ONE, None, {"is_causal": True}),
    "mask of a matrix": (HALF, LOWER, {}),
    "mask of keys": (ONE, SOME_KEYS, {}),
    "bias of each head": (HALF, BIAS, {}),
}


@fails_on_stock
@pytest.mark.parametrize("form", GROUPED.values(), ids=GROUPED.keys())
def test_grouped_heads_have_a_dimension_on_a_tpu(tpu, form):
    """Their scores have five dimensions, and a mask is broadcast to these."""
    key, mask, options = form
    query, key = (*Q[:3], 40), (*key[:3], 40)
    cpu, _ = operands(query, key, key)
    grad = random(*query, seed=3)

    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q.clone(), k.clone(), v, mask, enable_gqa=True, scale=0.3, **options)

    exact = oracle(attend, cpu, mask, grad)
    ours = computed(attend, cpu, mask, grad)
    assert f"2,{key[1]},{Q[1] // key[1]},{T},{S}" in sizes_of_dots(*ours)
    torch_xla.sync()
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=2e-2, atol=2e-2 * wanted.abs().max().item())


# ---- what stays as in stock

Z = (2, 3, 0, 4)
UNTOUCHED = {
    "float32": (f32, SIZES, SIZES, {}),
    "no query": (bf16, Z, SIZES, {}),
    "no key": (bf16, SIZES, Z, {}),
    "no heads": (bf16, (2, 0, 5, 4), (2, 0, 5, 4), {"enable_gqa": False}),
    "everything dropped": (bf16, SIZES, SIZES, {"dropout_p": 1.0}),
    "a batch that the key adds": (bf16, SIZES[1:], SIZES, {}),
}


@passes_on_stock
@pytest.mark.parametrize(("dtype", "q", "k", "options"), UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_other_forms_are_stocks(dtype, q, k, options):
    _, (q, k, v) = operands(q, k, k, dtype=dtype)
    math = torch.ops.aten._scaled_dot_product_attention_math
    expected = math(q, k, v, None, options.get("dropout_p", 0.0))[0]
    found = F.scaled_dot_product_attention(q, k, v, **options)
    assert ir(found) == ir(expected)
    assert torch.equal(found.cpu(), expected.cpu())


@fails_on_stock
def test_few_tokens_with_a_mask_that_fill_no_tiles_are_stocks_on_a_tpu(tpu):
    """Not those that fill tiles, those without a mask, one query of many keys, or where somebody chose."""
    few, many, one = (2, 2, 77, 40), (2, 2, 80, 40), (2, 2, 1, 40)
    _, (a, b, c) = operands(few, many, one, grad=False)
    masks = [torch.zeros(n, n).to(DEVICE) for n in (77, 80)]
    attend = F.scaled_dot_product_attention
    narrow = ["bf16 bf16 f32"] * 2
    assert "bf16" not in " ".join(dots(attend(a, a, a, masks[0])))
    assert dots(attend(a, a, a)) == dots(attend(b, b, b, masks[1])) == dots(attend(c, a, a, masks[0][:1])) == narrow
    experimental.narrow_attention(True)
    try:
        assert dots(attend(a, a, a, masks[0])) == narrow
    finally:
        experimental.narrow_attention("auto")


SMALL = {
    "heads of 16": ((2, 2, 40, 16), {}, True),
    "heads of 16, more tokens": ((1, 2, 300, 16), {}, True),
    "heads of 16, scores that no memory is near for": ((1, 2, 4200, 16), {}, False),
    "heads of 16, scaled": ((1, 2, 300, 16), {"scale": 0.3}, False),
    "heads of 32": ((2, 2, 40, 32), {}, True),
    "heads of 32, more tokens": ((1, 2, 300, 32), {}, False),
    "heads of 40": ((2, 2, 40, 40), {}, False),
    "causal": ((2, 2, 40, 40), {"is_causal": True}, True),
    "causal, more tokens": ((1, 2, 304, 40), {"is_causal": True}, False),
}


@fails_on_stock
@pytest.mark.parametrize(("sizes", "options", "by_torch"), SMALL.values(), ids=SMALL.keys())
def test_few_scores_are_stocks_on_a_tpu(tpu, sizes, options, by_torch):
    """Of narrow heads, or if they are causal and all of a graph; not where somebody chose, nor of float16."""
    ours = "bf16 bf16 f32"

    def first(computed="", dtype=bf16, keys_grad=True):
        query, key, value = (torch.zeros(sizes, dtype=dtype).to(DEVICE) for _ in range(3))
        query, key = query.requires_grad_(), key.requires_grad_(keys_grad)
        query, key = query.clone() if "q" in computed else query, key.clone() if "k" in computed else key
        return dots(F.scaled_dot_product_attention(query, key, value, **options))[0]

    assert first() == ("f32 f32 f32" if by_torch else ours)
    assert first(dtype=f16) == "f16 f16 f32"
    if options.get("is_causal"):
        assert first("q") == first("k") == first()
        assert first("qk") == first("q", keys_grad=False) == ours
    for choice in (True, False):
        experimental.narrow_attention(choice)
        try:
            assert first() == ours
        finally:
            experimental.narrow_attention("auto")


TOKENS = {  # of one head; whether the query is computed; options; by torch's formula
    "odd": (257, True, {}, True),
    "odd, causal": (257, True, {"is_causal": True}, True),
    "odd, causal, alone": (257, False, {"is_causal": True}, True),
    "odd, alone": (257, False, {}, False),
    "odd, dropout": (257, True, {"dropout_p": 0.1}, False),
    "odd, few": (50, True, {}, False),
    "odd, many": (1023, True, {"is_causal": True}, False),
    "even": (264, True, {"is_causal": True}, False),
}


@fails_on_stock
@pytest.mark.parametrize(("tokens", "computed", "options", "by_torch"), TOKENS.values(), ids=TOKENS.keys())
def test_tokens_that_leave_part_of_a_tile_are_stocks_in_training_on_a_tpu(tpu, tokens, computed, options, by_torch):
    """Not in inference, where heads share a key, nor at another precision or dtype."""
    ours = "bf16 bf16 f32"

    def first(heads=1, grad=True, dtype=bf16):
        leaves = [torch.zeros(1, n, tokens, 40, dtype=dtype).to(DEVICE) for n in (heads, 1, 1)]
        query, *others = (leaf.requires_grad_(grad) for leaf in leaves)
        query = query.clone() if computed else query
        return dots(F.scaled_dot_product_attention(query, *others, **options, enable_gqa=heads > 1))[0]

    assert first() == ("f32 f32 f32" if by_torch else ours)
    assert first(grad=False) == first(heads=2) == ours
    assert first(dtype=f16) == "f16 f16 f32"


@fails_on_stock
@pytest.mark.parametrize(("heads", "by_torch"), [(8, True), (180, False)])
def test_so_are_those_with_a_mask(tpu, heads, by_torch):
    """Of scores up to a third of the memory next to the cores."""
    shape = (1, heads, 257, 8)
    query = torch.zeros(shape, dtype=bf16).to(DEVICE).requires_grad_()
    mask = torch.ones(257, dtype=torch.bool).to(DEVICE)
    found = dots(F.scaled_dot_product_attention(query.clone(), query, query, attn_mask=mask))
    assert found[0] == ("f32 f32 f32" if by_torch else "bf16 bf16 f32")


@fails_on_stock
def test_few_scores_are_no_stocks_at_another_precision(tpu, set_matmul_precision):
    _, leaves = operands(*((2, 2, 40, 16),) * 3)
    set_matmul_precision("highest")
    assert dots(F.scaled_dot_product_attention(*leaves)) == WIDE


@fails_on_stock
@pytest.mark.parametrize(("sizes", "again"), [((2, 4, 16, 256), False), ((1, 8, 1100, 256), True)], ids=str)
def test_few_weights_of_wide_heads_wait_on_a_tpu(tpu, sizes, again):
    """The product that would give their scores again takes longer than they do."""
    leaves = [torch.zeros(sizes, dtype=bf16).to(DEVICE).requires_grad_() for _ in range(3)]
    result = F.scaled_dot_product_attention(*(leaf.clone() for leaf in leaves))
    result.backward(torch.zeros(sizes, dtype=bf16).to(DEVICE))
    assert hlo(*(t.grad for t in leaves)).count(" opt-barrier(") == again


@fails_on_stock
@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["all keys", "causal"])
def test_many_weights_of_an_exact_scale_wait_alone_with_a_scaled_query_on_a_tpu(tpu, options):
    """Of attention that is all of a graph; there is nothing between the product and its softmax."""
    leaves = [torch.zeros(1, 20, 1400, 16, dtype=bf16).to(DEVICE).requires_grad_() for _ in range(3)]
    text = hlo(F.scaled_dot_product_attention(*leaves, **options))
    assert ("bf16[1,20,1400,16] multiply(" in text) == (not options)
    assert "bf16 bf16 f32" in dots(F.scaled_dot_product_attention(*leaves, **options))


ERRORS = {
    "dtypes": lambda q, k, v: (q, k.float(), v),
    "sizes": lambda q, k, v: (q, k[..., :3], v),
    "heads": lambda q, k, v: (q, k[:, :2], v),
    "mask and causal": lambda q, k, v: (q, k, v, k @ k.mT, 0.0, True),
    "mask of another size": lambda q, k, v: (q, k, v, k),
    "mask of integers": lambda q, k, v: (q, k, v, (k @ k.mT).int()),
    "vectors": lambda q, k, v: (q[0, 0, 0], k[0, 0, 0], v[0, 0, 0]),
}


@passes_on_stock
@pytest.mark.parametrize("arguments", ERRORS.values(), ids=ERRORS.keys())
def test_errors_are_torchs(arguments):
    _, leaves = operands(grad=False)
    with pytest.raises((RuntimeError, ValueError)):
        F.scaled_dot_product_attention(*arguments(*leaves)).cpu()


@passes_on_stock
def test_torch_can_be_asked_for_bfloat16_throughout():
    _, (q, k, v) = operands(grad=False)
    allow = torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp
    try:
        allow(True)
        assert dots(F.scaled_dot_product_attention(q, k, v)) == ["bf16 bf16 bf16"] * 2
    finally:
        allow(False)


@passes_on_stock
def test_transforms():
    cpu, (q, k, v) = operands(grad=False)

    def total(q):
        return F.scaled_dot_product_attention(q, k, v).float().sum()

    each = torch.func.vmap(F.scaled_dot_product_attention)(q, k, v)
    expected = F.scaled_dot_product_attention(*(t.double() for t in cpu))
    torch.testing.assert_close(each.cpu().double(), expected, rtol=2e-2, atol=2e-2)
    assert torch.func.grad(total)(q).cpu().isfinite().all()


# ---- where it is called


@fails_on_stock
def test_modules():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).to(bf16).to(DEVICE)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(bf16).to(DEVICE)
    x = random(2, 5, 8).to(DEVICE)
    for result in (attention(x, x, x, need_weights=False)[0], layer(x)):
        assert not any("f32 f32" in dot for dot in dots(result))


@fails_on_stock
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd(mode):
    _, leaves = operands(grad=False)
    with mode():
        assert dots(F.scaled_dot_product_attention(*leaves)) == ["bf16 bf16 f32", "f32 bf16 f32"]


@fails_on_stock
def test_autocast():
    """Autocast, which would narrow the scores, has no say within."""
    _, leaves = operands()
    with torch.autocast("xla", dtype=bf16):
        result = F.scaled_dot_product_attention(*leaves)
    result.sum().backward()
    assert dots(result) == ["bf16 bf16 f32", "f32 bf16 f32"]
    assert "bf16 bf16 bf16" not in dots(*(t.grad for t in leaves))


@fails_on_stock
def test_torch_compile():
    cpu, leaves = operands(Q, K, K)
    grad = random(*Q, seed=3)

    @torch.compile(backend="openxla")
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def step():
        for t in leaves:
            t.grad = None
        result = attend(*leaves)
        result.backward(grad.to(DEVICE))
        return [result.detach().cpu(), *(t.grad.cpu() for t in leaves)]

    def eager():
        def attend(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return [t.cpu() for t in computed(attend, cpu, None, grad)]

    wide = step()
    for a, b in zip(wide, eager(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    experimental.narrow_attention(True)
    try:
        changed = step()
        for a, b in zip(changed, eager(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    finally:
        experimental.narrow_attention("auto")
    assert not all(map(torch.equal, wide, changed)), "a function is compiled again when the choice changes"


@fails_on_stock
def test_transformer():
    """The casts of a bfloat16 transformer's step, which on stock are 8 and 46, of scores' size or of operands'."""
    model, *inputs = model_and_data(bf16)
    with experimental.native_mul_context():
        loss = loss_of(model, *inputs)
        forward = casts(loss)
        loss.backward()
        assert (forward, casts(loss, *gradients(model))) == (2, 8)


# ---- in other processes

PROGRAM = """
import torch, torch_xla
from ir_text import ir
q = torch.ones(2, 3, 5, 64, dtype=torch.bfloat16, device=torch_xla.device())
torch_xla.sync()
text = ir(torch.nn.functional.scaled_dot_product_attention(q, q, q))
print("dots", text.count("dot_general"), "casts", text.count("cast"))
"""


@fails_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
@pytest.mark.parametrize(("narrow", "device", "casts"), [("1", "", 2), ("auto", "TPU", 2), ("0", "TPU", 1)])
def test_environment(narrow, device, casts):
    output = run("-c", PROGRAM, XLA_NARROW_ATTENTION=narrow, CASTOFF_TRACE_FOR=device)
    assert f"dots 2 casts {casts}" in output


ASK_FOR_IT = "import torch_xla\ntorch_xla.experimental.narrow_attention(True)\n" + PROGRAM


@fails_on_stock
@pytest.mark.parametrize("topic", ["native-attention", "matmul-out-dtype"])
@pytest.mark.default_pin
@pytest.mark.slow
def test_disabled(topic):
    """Stock behaviour, and a word to who asks for more."""
    output = run("-c", ASK_FOR_IT, CASTOFF_DISABLE=topic)
    assert "dots 0" in output
    assert output.count("narrow_attention has no effect") == 1


@fails_on_stock
@pytest.mark.slow
def test_functionalization_off():
    chosen = "without_autograd or gradients_of_gradients or narrow"
    output = run_tests(__file__, "-k", chosen, XLA_DISABLE_FUNCTIONALIZATION="1")
    assert " passed" in output and "failed" not in output


SPMD = r"""
import os, pathlib, re
import numpy, torch, torch_xla, torch_xla.distributed.spmd as xs
torch_xla.runtime.use_spmd()
mesh = xs.Mesh(numpy.arange(4), (2, 2), ("data", "model"))

def step(attend):
    leaves = []
    for seed in range(3):
        t = torch.randn(4, 4, 8, 16, generator=torch.Generator().manual_seed(seed)).bfloat16().to(torch_xla.device())
        xs.mark_sharding(t, mesh, ("data", "model", None, None))
        leaves.append(t.requires_grad_())
    grad = torch.randn(4, 4, 8, 16).bfloat16().to(torch_xla.device())
    xs.mark_sharding(grad, mesh, ("data", "model", None, None))
    result = attend(*leaves)
    result.backward(grad)
    outputs = [result, *(t.grad for t in leaves)]
    text = torch_xla._XLAC._get_xla_tensors_hlo(outputs)
    torch_xla.sync()
    return [t.detach().cpu() for t in outputs], text

def collectives():  # of the step's program, the one with exponentials: to read a result takes another
    names = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
    texts = [file.read_text() for file in pathlib.Path(os.environ["DUMP"]).glob("*after_optimizations.txt")]
    (text,) = [text for text in texts if " exponential(" in text]
    return [name for name in names if name + "(" in text]

values, text = step(torch.nn.functional.scaled_dot_product_attention)
assert text.count("dot(") == 7 and re.search(r"f32\[4,4,8,8\]\S* dot", text)
print("collectives", collectives())
assert all(t.isfinite().all() for t in values)
"""


@fails_on_stock
def test_spmd(tmp_path):
    """Sharded over batch and heads each device computes its own part."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    output = run("-c", SPMD, CPU_NUM_DEVICES="4", XLA_FLAGS=flags, DUMP=str(tmp_path))
    assert "collectives []" in output
