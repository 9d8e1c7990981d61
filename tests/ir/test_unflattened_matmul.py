"""Products of tensors that were flattened for them, as a TPU gets them: patches/torch_xla/unflattened-matmul."""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked, run
from tensors import DEVICE, bf16, f16, f32, random
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def leaves(*shapes, dtype=bf16):
    return [random(*shape, dtype=dtype, seed=i).to(DEVICE).requires_grad_() for i, shape in enumerate(shapes)]


def differentiated(function, *operands):
    """The result and its gradients."""
    result = function(*operands)
    grad = random(*result.shape, dtype=result.dtype, seed=9).to(DEVICE)
    return [result.detach(), *torch.autograd.grad(result, operands, grad)]


# ---- the graph


@fails_on_stock
def test_linear(tpu):
    x, w = leaves((2, 16, 8), (4, 8))
    ir(F.linear(x, w)).expect("""\
%0 = bf16[4,8] xla::device_data()
%1 = bf16[8,4] aten::permute(%0)
%2 = bf16[2,16,8] xla::device_data()
%3 = bf16[2,16,4] xla::dot_general(%2, %1)
%4 = bf16[32,4] aten::view(%3)
%5 = bf16[2,16,4] aten::view(%4)
return %5
""")


@fails_on_stock
def test_gradients(tpu):
    """The view of a gradient is of the result; over the rows nothing is flattened."""
    operands = leaves((2, 16, 8), (4, 8))
    _, *gradients = differentiated(F.linear, *operands)
    ir(*gradients).expect("""\
%0 = bf16[4,8] xla::device_data()
%1 = bf16[8,4] aten::permute(%0)
%2 = bf16[4,8] aten::permute(%1)
%3 = bf16[2,16,4] xla::device_data()
%4 = bf16[2,16,8] xla::dot_general(%3, %2)
%5 = bf16[32,8] aten::view(%4)
%6 = bf16[2,16,8] aten::view(%5)
%7 = bf16[2,16,8] xla::device_data()
%8 = bf16[8,4] xla::dot_general(%7, %3)
%9 = bf16[4,8] aten::permute(%8)
return %6, %9
""")


@passes_on_stock
def test_other_devices_have_stocks_graph():
    x, w = leaves((2, 16, 8), (4, 8))
    ir(F.linear(x, w)).expect("""\
%0 = bf16[4,8] xla::device_data()
%1 = bf16[8,4] aten::permute(%0)
%2 = bf16[2,16,8] xla::device_data()
%3 = bf16[32,8] aten::view(%2)
%4 = bf16[32,4] aten::mm(%3, %1)
%5 = bf16[2,16,4] aten::view(%4)
return %5
""")


FORMS = {
    "linear": (F.linear, ((2, 16, 8), (4, 8))),
    "with a bias": (F.linear, ((2, 16, 8), (4, 8), (4,))),
    "of four dimensions": (F.linear, ((2, 3, 16, 8), (4, 8), (4,))),
    "matmul": (torch.matmul, ((2, 16, 8), (8, 4))),
    "addmm of a view": (lambda x, w, b: torch.addmm(b, x.view(-1, 8), w).view(2, 16, 4), ((2, 16, 8), (8, 4), (4,))),
    "after a transpose": (lambda x, w: F.linear(x.transpose(1, 2).flatten(2), w), ((2, 4, 16, 2), (4, 8))),
    "two in a row": (lambda x, v, w: F.linear(F.silu(F.linear(x, v)), w), ((2, 16, 8), (16, 8), (8, 16))),
}


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16, f32), ids=str)
@pytest.mark.parametrize(("function", "shapes"), FORMS.values(), ids=FORMS.keys())
def test_the_same_numbers(function, shapes, dtype, tpu):
    """Bit for bit those of the flattened products; of matrices is left, in float32, the gradient of a weight."""
    operands = leaves(*shapes, dtype=dtype)
    found = differentiated(function, *operands)
    assert ("::mm" in ir(*found)) == (dtype == f32) and "::addmm" not in ir(*found)
    assert "::mm" not in ir(*found[:2])  # the result and the gradient of the input
    tpu(False)
    expected = differentiated(function, *operands)
    assert "::mm" in ir(*expected) or "::addmm" in ir(*expected)
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == e.dtype and f.shape == e.shape
        if f.dim() == 1:  # of a bias: a sum, which wide-reductions leaves to a TPU's compiler
            torch.testing.assert_close(f.cpu(), e.cpu(), rtol=2e-2, atol=0.1)
        else:
            assert torch.equal(f.cpu(), e.cpu())


def by_hand(x, w):
    """Scores of a query and a key with rotary positions, by a batched product."""
    q = F.linear(x, w).view(2, 16, 2, 8).transpose(1, 2)
    q = q * 2 + torch.cat((-q[..., 4:], q[..., :4]), -1)
    return q @ q.mT


@pytest.mark.default_pin
@fails_on_stock
def test_a_linear_that_a_batched_product_reads_is_flattened(tpu):
    ir(by_hand(*leaves((2, 16, 8), (16, 8)))).expect("""\
%0 = bf16[] prim::Constant()
%1 = bf16[16,8] xla::device_data()
%2 = bf16[8,16] aten::permute(%1)
%3 = bf16[2,16,8] xla::device_data()
%4 = bf16[32,8] aten::view(%3)
%5 = bf16[32,16] xla::dot_general(%4, %2)
%6 = bf16[32,16] aten::view(%5)
%7 = bf16[2,16,16] aten::view(%6)
%8 = bf16[2,16,2,8] aten::view(%7)
%9 = bf16[2,2,16,8] aten::permute(%8)
%10 = bf16[2,2,16,4] xla::select(%9)
%11 = bf16[2,2,16,4] xla::select(%9)
%12 = bf16[2,2,16,4] aten::neg(%11)
%13 = bf16[2,2,16,8] aten::cat(%12, %10)
%14 = f32[] xla::device_data()
%15 = f32[2,2,16,8] xla::cast(%9)
%16 = f32[2,2,16,8] aten::mul(%15, %14)
%17 = bf16[2,2,16,8] xla::cast(%16)
%18 = bf16[2,2,16,8] aten::add(%17, %13, %0)
%19 = bf16[2,2,8,16] aten::permute(%18)
%20 = bf16[2,2,8,16] aten::expand(%19)
%21 = bf16[4,8,16] aten::view(%20)
%22 = bf16[2,2,16,8] aten::expand(%18)
%23 = bf16[4,16,8] aten::view(%22)
%24 = bf16[4,16,16] aten::matmul(%23, %21)
%25 = bf16[2,2,16,16] aten::view(%24)
return %25
""")


@fails_on_stock
def test_what_a_batched_product_reads_is_the_same_numbers(tpu):
    """Who reads the linear besides gets them, too."""
    x, w = leaves((2, 16, 8), (16, 8))

    def both(x, w):
        y = F.linear(x, w)
        q = y.view(2, 16, 2, 8).transpose(1, 2)
        return (q @ q.mT).sum((1, 3))[..., None] + y

    found = differentiated(both, x, w)
    assert "dot_general" in ir(*found)
    tpu(False)
    for f, e in zip(found, differentiated(both, x, w), strict=True):
        assert torch.equal(f.cpu(), e.cpu())


STAYS = {
    "matrices": lambda x, w: x[0] @ w,
    "a view of all elements in other rows": lambda x, w: x.view(-1, 16) @ w.repeat(2, 1),
    "of a part of the first dimension": lambda x, w: x.view(4, 64) @ w.repeat(8, 1),
    "a result that is scaled": lambda x, w: torch.addmm(w[0], x.view(-1, 8), w, alpha=2),
    "a bias for each row": lambda x, w: torch.addmm(x.view(-1, 8)[:, :1], x.view(-1, 8), w),
    "no elements": lambda x, w: x[:0] @ w,
}


@fails_on_stock
@pytest.mark.parametrize("function", STAYS.values(), ids=STAYS.keys())
def test_the_rest_is_as_in_stock(function, tpu):
    x, w = (t.detach() for t in leaves((2, 16, 8), (8, 4)))
    found = ir(function(x, w))
    tpu(False)
    assert found == ir(function(x, w))


@fails_on_stock
@pytest.mark.parametrize("dims", [(0, 1), (1, 0)], ids=str)
def test_a_square_matrix_that_is_permuted(dims, tpu):
    """(0, 1), which torch.tensordot uses, does not transpose it."""
    x, y = (random(2, 8, 16, dtype=f32, seed=i) for i in range(2))

    def product(x, y):
        return x.view(16, 16).permute(dims) @ y.view(16, 16)

    torch.testing.assert_close(product(x.to(DEVICE), y.to(DEVICE)).cpu(), product(x, y))


@fails_on_stock
@pytest.mark.parametrize("tokens", [1, 7, 197])
def test_tokens_that_fill_no_tiles_stay_flattened(tpu, tokens):
    """A TPU would pad those of each batch."""
    operands = leaves((2, tokens, 8), (4, 8))
    found = ir(*differentiated(F.linear, *operands))
    tpu(False)
    assert found == ir(*differentiated(F.linear, *operands))


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f32), ids=str)
def test_a_gradient_of_one_number_stays_flattened(tpu, dtype):
    """That of a sum: XLA makes its product with the weight a sum, but not in more dimensions."""

    def gradients():
        x, w = leaves((4, 8, 8), (4, 8), dtype=dtype)
        return [ir(t) for t in torch.autograd.grad(F.linear(x, w).float().sum(), (x, w))]

    of_input, of_weight = gradients()
    tpu(False)
    assert of_input == gradients()[0]
    assert "aten::mm" in of_input
    assert ("dot_general" in of_weight) == (dtype == bf16)


@fails_on_stock
def test_what_was_executed_has_no_view(tpu):
    x, w = leaves((2, 16, 8), (8, 4))
    rows = x.view(-1, 8)
    torch_xla.sync()
    assert "aten::mm" in ir(rows @ w)


@fails_on_stock
def test_widened_factors_are_exact_dots(tpu):
    x, w = leaves((2, 16, 8), (4, 8))
    text = ir(F.linear(x.float(), w.float()))
    assert "xla::cast" not in text and "= f32[32,4] xla::dot_general(" in text


# ---- projections that one product computes


def projections(x, w, b=None, heads=2):
    """Query, key and value of [B, N, C], as timm and others take them apart."""
    (batch, tokens, width), count = x.shape, w.shape[0] // x.shape[2]
    parts = F.linear(x, w, b).reshape(batch, tokens, count, heads, width // heads)
    return parts.permute(2, 0, 3, 1, 4).unbind(0)


def mixed(*operands):
    """Of each part another function, whose gradients differ."""
    return sum(i * part.tanh() for i, part in enumerate(projections(*operands), 1))


@fails_on_stock
def test_ir_of_projections(tpu):
    """Each is a range of the product's columns, and not of a dimension between tokens and heads."""
    x, w = leaves((2, 16, 8), (24, 8))
    ir(projections(x, w)[1]).expect("""\
%0 = bf16[24,8] xla::device_data()
%1 = bf16[8,24] aten::permute(%0)
%2 = bf16[2,16,8] xla::device_data()
%3 = bf16[2,16,24] xla::dot_general(%2, %1)
%4 = bf16[32,24] aten::view(%3)
%5 = bf16[2,16,24] aten::view(%4)
%6 = bf16[2,16,8] xla::select(%5)
%7 = bf16[2,16,1,2,4] aten::view(%6)
%8 = bf16[1,2,2,16,4] aten::permute(%7)
%9 = bf16[1,2,2,16,4] xla::generic_slice(%8)
%10 = bf16[2,2,16,4] aten::view(%9)
return %10
""")


@fails_on_stock
def test_ir_of_the_gradient_of_projections(tpu):
    """The parts' gradients side by side."""
    _, gradient, _ = differentiated(mixed, *leaves((2, 16, 8), (24, 8)))
    text = ir(gradient)
    assert "= bf16[2,16,24] aten::cat(" in text
    assert "bf16[3," not in text and "bf16[2,16,3," not in text


SEVERAL = {
    "with a bias": ((2, 16, 8), (24, 8), (24,)),
    "as many batches as parts": ((3, 16, 8), (24, 8)),
    "one batch": ((1, 16, 8), (24, 8)),
    "two parts": ((2, 16, 8), (16, 8)),
}


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f32), ids=str)
@pytest.mark.parametrize("shapes", SEVERAL.values(), ids=SEVERAL)
def test_projections_are_the_same_numbers(shapes, dtype, tpu):
    """Bit for bit."""
    operands = leaves(*shapes, dtype=dtype)
    found = differentiated(mixed, *operands)
    assert "aten::cat" in ir(*found)
    tpu(False)
    expected = differentiated(mixed, *operands)
    assert "aten::cat" not in ir(*expected)
    for f, e in zip(found[:3], expected[:3], strict=True):  # a bias' gradient is summed in float32 by the CPU alone
        assert f.dtype == e.dtype and torch.equal(f.cpu(), e.cpu())


@fails_on_stock
@pytest.mark.parametrize(("tokens", "side_by_side"), ((7, False), (105, False), (113, True), (197, True)))
def test_gradients_of_tokens_that_would_be_padded_much_stay_stacked(tokens, side_by_side, tpu):
    """By more than a sixteenth, to a multiple of 8."""
    operands = leaves((2, tokens, 8), (24, 8))
    found = differentiated(mixed, *operands)
    assert "xla::select" in ir(found[0]) and ("aten::cat" in ir(*found)) == side_by_side
    tpu(False)
    expected = differentiated(mixed, *operands)
    assert all(torch.equal(f.cpu(), e.cpu()) for f, e in zip(found, expected, strict=True))


OTHER = {
    "another dimension": lambda y: y.reshape(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(1),
    "the last dimension of all": lambda y: y.reshape(2, 16, 2, 4, 3).permute(4, 0, 2, 1, 3).unbind(0),
    "no permutation": lambda y: y.reshape(2, 16, 3, 8).unbind(2),
    "tokens that are split, too": lambda y: y.reshape(2, 4, 4, 3, 8).permute(3, 0, 1, 2, 4).unbind(0),
    "a permutation that moves another one of three": lambda y: (
        y[:, :3].reshape(2, 3, 3, 2, 4).permute(1, 0, 2, 3, 4).unbind(0)
    ),
}


@fails_on_stock
@pytest.mark.parametrize("function", OTHER.values(), ids=OTHER)
def test_what_is_taken_apart_otherwise_is_as_in_stock(function, tpu):
    y = random(2, 16, 24, dtype=bf16).to(DEVICE) * 2
    found = ir(*function(y))
    tpu(False)
    assert found == ir(*function(y))


@fails_on_stock
def test_a_part_that_is_written_to(tpu):
    """Parts share nothing, as the kernels that make them return copies."""
    x, w = (t.detach() for t in leaves((2, 16, 8), (24, 8)))

    def written():
        y = F.linear(x, w)
        q, k, v = y.reshape(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        k.zero_()
        return q, k, v, y

    found = written()
    tpu(False)
    assert all(torch.equal(f.cpu(), e.cpu()) for f, e in zip(found, written(), strict=True))


# ---- with what else there is


def loss(x, v, w):
    return F.linear(F.gelu(F.linear(x, v)), w).float().square().mean()


@fails_on_stock
def test_gradients_of_gradients(tpu):
    def second(*operands):
        (first,) = torch.autograd.grad(loss(*operands), operands[0], create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), operands)

    operands = leaves((2, 16, 8), (16, 8), (8, 16))
    found = second(*operands)
    assert "aten::mm" not in ir(*found)
    tpu(False)
    assert all(torch.equal(f.cpu(), e.cpu()) for f, e in zip(found, second(*operands), strict=True))


@fails_on_stock
def test_checkpoint(tpu):
    operands = leaves((2, 16, 8), (16, 8), (8, 16))
    found = torch.autograd.grad(checkpoint(loss, *operands, use_reentrant=False), operands)
    assert "aten::mm" not in ir(*found)
    tpu(False)
    expected = torch.autograd.grad(loss(*operands), operands)
    assert all(torch.equal(f.cpu(), e.cpu()) for f, e in zip(found, expected, strict=True))


@fails_on_stock
def test_wide_gradients_are_as_wide(tpu):
    x, w = leaves((2, 16, 8), (4, 8))
    w.grad_dtype = f32
    F.linear(x, w).sum().backward()
    exact = x.detach().cpu().double().sum((0, 1)).expand(4, 8)
    assert w.grad.dtype == f32
    torch.testing.assert_close(w.grad.cpu().double(), exact, rtol=1e-6, atol=1e-6)


@fails_on_stock
def test_the_precision_of_products(tpu, set_matmul_precision):
    """torch_xla's node, which is cloned, has the default one."""
    operands = leaves((2, 16, 8), (16, 8))
    for precision in ("default", "highest", "default"):
        set_matmul_precision(precision)
        result = by_hand(*operands)
        assert "bf16[32,16] xla::dot_general" in ir(result)
        count = torch_xla._XLAC._get_xla_tensors_hlo([result]).count("operand_precision={highest,highest}")
        assert (count > 0) == (precision == "highest")
    set_matmul_precision("highest")
    product = F.linear(*operands)
    set_matmul_precision("default")
    heads = product.view(2, 16, 2, 8).transpose(1, 2)
    assert "bf16[2,16,16] xla::dot_general" in ir(heads @ heads.mT)  # has the precision that it was asked for in


@fails_on_stock
def test_under_torch_compile(tpu):
    operands = leaves((2, 16, 8), (16, 8), (8, 16))
    found = torch.autograd.grad(torch.compile(loss, backend="openxla")(*operands), operands)
    tpu(False)
    expected = torch.autograd.grad(loss(*operands), operands)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f.cpu(), e.cpu(), rtol=2e-2, atol=2e-3)


# ---- in other processes

PROGRAM = """
import torch, torch_xla
from ir_text import ir
x = torch.ones(2, 16, 8, dtype=torch.bfloat16, device=torch_xla.device())
torch_xla.sync()
y = x @ x[0].t()
print("dots", ir(y).count("dot_general"), y.cpu().sum().item())
"""
SPMD = """
import numpy, torch_xla.distributed.spmd as xs
torch_xla.runtime.use_spmd()
"""


@fails_on_stock
@pytest.mark.slow
def test_by_environment():
    assert "dots 1 4096.0" in run("-c", PROGRAM, CASTOFF_TRACE_FOR="TPU")
    assert "dots 1 4096.0" in run("-c", PROGRAM, CASTOFF_TRACE_FOR="TPU", CASTOFF_DISABLE="native-attention")
    assert "dots 0 4096.0" in forked("-c", PROGRAM).stdout


@passes_on_stock
@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    ({"CASTOFF_DISABLE": "matmul-out-dtype"}, {"XLA_DISABLE_FUNCTIONALIZATION": "1"}),
    ids=str,
)
def test_switched_off(environment):
    assert "dots 0 4096.0" in run("-c", PROGRAM, CASTOFF_TRACE_FOR="TPU", **environment)


@passes_on_stock
@pytest.mark.slow
def test_spmd_has_stocks_graph():
    program = PROGRAM.replace("from ir_text", SPMD + "from ir_text")
    assert "dots 0 4096.0" in run("-c", program, CASTOFF_TRACE_FOR="TPU", CPU_NUM_DEVICES="2")
