"""Results in the dtype that torch promotes to: patches/torch_xla/result-dtypes."""

import itertools
import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from expecttest import assert_expected_inline
from ir_text import ir

DEVICE = torch_xla.device()
bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32

fails_on_stock = pytest.mark.fails_on_stock
passes_on_stock = pytest.mark.passes_on_stock

I8 = torch.tensor([[1, -2, 100], [3, 0, 100]], dtype=torch.int8)
BOOL = torch.tensor([[True, False, True], [True, True, True]])
INTEGERS = {"i8": I8, "u8": I8.abs().to(torch.uint8), "i32": I8.int(), "i64": I8.long(), "bool": BOOL}
FLOATS = torch.tensor([[0.1, 2.0, 3.0], [4.0, 5.0, 6.0]])
HALVES = {"bf16": torch.tensor([-1e9, 1.5, 0.1]).to(bf16), "f16": torch.tensor([0.1, 1.5, 0.3]).to(f16)}


def assert_same(function, *cpu):
    expected = function(*cpu)
    found = function(*(t.to(DEVICE) for t in cpu))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True)


narrow = pytest.mark.parametrize("dtype", ("i8", "u8", "i32", "bool"))
every = pytest.mark.parametrize("dtype", INTEGERS)


@fails_on_stock
@narrow
@pytest.mark.parametrize("name", ("cumsum", "cumprod"))
def test_cumulative_operators_of_integers(name, dtype):
    assert_same(lambda x: getattr(x, name)(1), INTEGERS[dtype])


@fails_on_stock
def test_positions_from_a_mask():
    assert_expected_inline(
        ir(BOOL.to(DEVICE).cumsum(1)),
        """\
%0 = pred[2,3] xla::device_data()
%1 = s64[2,3] xla::cast(%0)
%2 = s64[2,3] aten::cumsum(%1)
return %2
""",
    )


@fails_on_stock
@narrow
def test_trace(dtype):
    assert_same(torch.trace, INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("dim", (None, 0, -1, (0, 1)), ids=str)
@narrow
def test_count_nonzero(dtype, dim):
    assert_same(lambda x: torch.count_nonzero(x, dim), INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("name", ("bitwise_and", "bitwise_or", "bitwise_xor"))
@pytest.mark.parametrize("pair", [("i8", "i64"), ("bool", "u8"), ("i8", "u8")], ids="-".join)
def test_bitwise_operators_of_two_dtypes(name, pair):
    assert_same(getattr(torch, name), *(INTEGERS[dtype] for dtype in pair))


@passes_on_stock
@pytest.mark.parametrize("name", ("bitwise_and", "bitwise_or", "bitwise_xor"))
@every
def test_bitwise_operators_of_one_dtype(name, dtype):
    assert_same(getattr(torch, name), INTEGERS[dtype], INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("name", ("add", "sub", "lt", "ge"))
def test_int8_and_uint8(name):
    assert_same(getattr(torch, name), INTEGERS["i8"], INTEGERS["u8"])


@fails_on_stock
@pytest.mark.parametrize("dtype", ("i8", "u8", "i32", "i64"))
def test_clamp_of_integers_by_a_float(dtype):
    assert_same(lambda x: x.clamp(max=0.5), INTEGERS[dtype])


@passes_on_stock
@pytest.mark.parametrize("dtype", ("i8", "u8", "i32", "i64"))
def test_clamp_of_integers_by_integers(dtype):
    assert_same(lambda x: x.clamp(1, 2), INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("dtype", ("i8", "i64"))
def test_where_of_two_dtypes(dtype):
    assert_same(torch.where, BOOL, INTEGERS[dtype], FLOATS)


@fails_on_stock
@pytest.mark.parametrize("number", (-1e9, 0.1), ids=str)
def test_bfloat16_equals_the_number_it_was_made_of(number):
    assert_same(lambda x: x == number, HALVES["bf16"])


@passes_on_stock
@pytest.mark.parametrize("name", ("eq", "ne", "lt", "le", "gt", "ge"))
def test_comparisons_with_exact_numbers_are_as_in_stock(name):
    assert_same(lambda x: getattr(x, name)(1.5), HALVES["bf16"])
    assert_same(lambda x: getattr(x, name)(1.5), HALVES["f16"])
    assert_same(lambda x: getattr(x, name)(0.1), FLOATS)


@pytest.mark.parametrize("dtype", HALVES)
def test_all_comparisons_with_numbers(dtype):
    for name, number in itertools.product(("eq", "ne", "lt", "le", "gt", "ge"), (-1e9, 0.1, 0.3, 1e-9, 70000.0, 3)):
        assert_same(lambda x, name=name, number=number: getattr(x, name)(number), HALVES[dtype])


@fails_on_stock
@pytest.mark.parametrize("name", ("sqrt", "exp", "sigmoid", "tanh", "log1p", "erf", "reciprocal", "isnan"))
def test_float_functions_of_bool(name):
    assert_same(getattr(torch, name), BOOL)


@fails_on_stock
def test_share_of_equal_elements():
    assert_same(lambda x: (x == x).float().mean() + x.logsumexp(1).sum(), INTEGERS["i64"])


@fails_on_stock
@pytest.mark.parametrize("has_bias", (True, False))
def test_layer_norm_with_float32_parameters(has_bias):
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0)).to(bf16)
    weight, bias = torch.linspace(0.5, 1.5, 6), torch.linspace(-1, 1, 6) if has_bias else None

    def outputs(device):
        leaf = x.to(device).requires_grad_()
        parameters = [weight.to(device).requires_grad_(), None if bias is None else bias.to(device)]
        out = F.layer_norm(leaf, (6,), *parameters)
        out.float().square().sum().backward()
        return out, leaf.grad, parameters[0].grad

    for found, expected in zip(outputs(DEVICE), outputs("cpu"), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=2e-2, atol=2e-2)


@passes_on_stock
def test_the_rest_is_as_in_stock():
    x, i, b = FLOATS.to(DEVICE), INTEGERS["i64"].to(DEVICE), BOOL.to(DEVICE)
    h = HALVES["bf16"].to(DEVICE)
    assert_expected_inline(
        ir(i.cumsum(0), x.clamp(max=0.5), torch.where(b, x, x), h == 1.5, x == 0.1, i + 1, i & i, x + i, x.sqrt()),
        """\
""",
    )
