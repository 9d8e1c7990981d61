"""Results in the dtype that torch promotes to: patches/torch_xla/result-dtypes."""

import itertools
import random
import re
import threading

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from compared import assert_same
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f16, f32

I8 = torch.tensor([[1, -2, 100], [3, 0, 100]], dtype=torch.int8)
BOOL = torch.tensor([[True, False, True], [True, True, True]])
INTEGERS = {"i8": I8, "u8": I8.abs().to(torch.uint8), "i32": I8.int(), "i64": I8.long(), "bool": BOOL}
FLOATS = torch.tensor([[0.1, 2.0, 3.0], [4.0, 5.0, 6.0]])
HALVES = {"bf16": torch.tensor([-1e9, 1.5, 0.1]).to(bf16), "f16": torch.tensor([0.1, 1.5, 0.3]).to(f16)}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


narrow = pytest.mark.parametrize("dtype", ("i8", "u8", "i32", "bool"))
every = pytest.mark.parametrize("dtype", INTEGERS)


# ---- sums of integers


@fails_on_stock
@narrow
def test_cumulative_sums_of_integers(dtype):
    assert_same(lambda x: x.cumsum(1), INTEGERS[dtype])


@narrow
def test_cumulative_products_of_integers(dtype):
    assert_same(lambda x: x.cumprod(1), INTEGERS[dtype])


@fails_on_stock
def test_positions_from_a_mask():
    ir(BOOL.to(DEVICE).cumsum(1)).expect("""\
%0 = pred[2,3] xla::device_data()
%1 = s64[2,3] xla::cast(%0)
%2 = s64[2,3] aten::cumsum(%1)
return %2
""")


@every
@pytest.mark.parametrize("to", (torch.int8, torch.int32, f32), ids=str)
def test_cumulative_sums_with_a_dtype_and_in_place(dtype, to):
    assert_same(lambda x: x.cumsum(1, dtype=to), INTEGERS[dtype])
    assert_same(lambda x: torch.cumsum(x, 1, out=torch.empty(2, 3, dtype=to, device=x.device)), INTEGERS[dtype])
    if dtype != "bool":
        assert_same(lambda x: x.clone().cumsum_(1), INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("dtype", ("i8", "u8", "i32"))
def test_trace(dtype):
    assert_same(torch.trace, INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("dim", (None, 0, -1, (0, 1)), ids=str)
@narrow
def test_count_nonzero(dtype, dim):
    assert_same(lambda x: torch.count_nonzero(x, dim), INTEGERS[dtype])


@pytest.mark.parametrize("dim", (None, pytest.param(0, marks=fails_on_stock), (0, 1)), ids=str)
def test_count_nonzero_of_int64_is_used_later(dim):
    count = torch.count_nonzero(INTEGERS["i64"].to(DEVICE), dim)
    torch_xla.sync()
    assert (count + 1).tolist() == (torch.count_nonzero(INTEGERS["i64"], dim) + 1).tolist()


def test_count_nonzero_of_floats_and_of_one_number():
    for x in (FLOATS, HALVES["bf16"], FLOATS[0, 0], BOOL[0, 0], FLOATS[:0]):
        assert_same(torch.count_nonzero, x)


# ---- complex numbers

COMPLEX = torch.tensor([1 + 2j, -3.5 + 0.25j, 1e-3 - 4j])


@fails_on_stock
@pytest.mark.parametrize(
    "divided",
    (
        lambda z: z / z.flip(0),
        lambda z: z / 2,
        lambda z: z / (1 + 2j),
        lambda z: z / torch.tensor(3 - 1j),
        lambda z: z / torch.tensor([[1], [2]], device=z.device),
        lambda z: z.to(torch.complex128) / z,
    ),
)
def test_quotients_of_complex_numbers(divided):
    assert_same(divided, COMPLEX)


@pytest.mark.parametrize(
    "divided",
    (
        lambda z: z / z.real,
        lambda z: z.real / z,
        lambda z: z.clone().div_(z.flip(0)),
        lambda z: z.real / (1 + 2j),
    ),
)
def test_quotients_of_complex_numbers_that_stock_has_right(divided):
    assert_same(divided, COMPLEX)


@fails_on_stock
def test_gradients_of_quotients_of_complex_numbers():
    def gradients(device):
        a, b = (t.to(device).requires_grad_() for t in (COMPLEX, COMPLEX.flip(0)))
        (a / b).abs().sum().backward()
        return [a.grad.cpu(), b.grad.cpu()]

    torch.testing.assert_close(gradients(DEVICE), gradients("cpu"))


# ---- operands of two dtypes


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
@pytest.mark.parametrize("name", ("add", "sub", "lt"))
def test_int8_and_uint8(name):
    assert_same(getattr(torch, name), INTEGERS["i8"], INTEGERS["u8"])


@fails_on_stock
@pytest.mark.parametrize("dtype", ("i8", "u8", "i32", "i64"))
def test_clamp_of_integers_by_a_float(dtype):
    assert_same(lambda x: x.clamp(max=0.5), INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("dtype", ("i8", "u8", "i32", "i64"))
def test_remainder_of_integers_by_a_float(dtype):
    assert_same(lambda x: x % 0.75, INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("number", (3, -3, 0.75))
def test_remainder_of_bools(number):
    assert_same(lambda x: x % number, torch.tensor([True, False]))


@pytest.mark.fails_on_stock("2.9", "2.8")
@pytest.mark.parametrize("dtype", ("i8", "i32"))
@pytest.mark.parametrize("name", ("bitwise_left_shift", "bitwise_right_shift"))
def test_shifts_by_a_number_and_of_one(name, dtype):
    function = getattr(torch, name)
    assert_same(lambda x: function(x, 2), INTEGERS[dtype])
    assert_same(lambda x: function(5, x), INTEGERS[dtype].abs() % 3)


@passes_on_stock
@pytest.mark.parametrize("dtype", ("i8", "u8", "i32", "i64"))
def test_clamp_of_integers_by_integers(dtype):
    assert_same(lambda x: x.clamp(1, 2), INTEGERS[dtype])


@fails_on_stock
@pytest.mark.parametrize("dtype", ("i8", "i64"))
def test_where_of_two_dtypes(dtype):
    assert_same(torch.where, BOOL, INTEGERS[dtype], FLOATS)


@fails_on_stock
def test_ir_of_where_with_two_dtypes():
    mask, i, x = BOOL.to(DEVICE), INTEGERS["i64"].to(DEVICE), FLOATS.to(DEVICE)
    ir(torch.where(mask, i, x)).expect("""\
%0 = f32[2,3] xla::device_data()
%1 = s64[2,3] xla::device_data()
%2 = f32[2,3] xla::cast(%1)
%3 = pred[2,3] xla::device_data()
%4 = f32[2,3] aten::where(%3, %2, %0)
return %4
""")


def test_gradients_of_where_with_two_dtypes():
    def gradient(device):
        leaf = FLOATS.to(device).requires_grad_()
        out = torch.where(BOOL.to(device), leaf, INTEGERS["i64"].to(device))
        out.square().sum().backward()
        return leaf.grad.cpu()

    torch.testing.assert_close(gradient(DEVICE), gradient("cpu"))


DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, bf16, f16, f32)
BINARY = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", *COMPARISONS)},
    **{name: getattr(torch, name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum")},
    **{name: getattr(torch, name) for name in ("clamp_min", "clamp_max")},
    "clamp": lambda a, b: torch.clamp(a, b, b),
    "where": lambda a, b: torch.where(torch.tensor([True, False, True], device=a.device), a, b),
    "<<": lambda a, b: torch.bitwise_left_shift(a, (b > 1).to(b.dtype)),
    ">>": lambda a, b: torch.bitwise_right_shift(a, (b > 1).to(b.dtype)),
    "remainder": torch.remainder,
    "or_": lambda a, b: a.clone().bitwise_or_(b),
}


@pytest.mark.parametrize("name", BINARY)
def test_two_dtypes_as_on_the_cpu(name):
    """Each operator with pairs of dtypes, with 0-d operands on either side; all of them in one graph."""
    generator = random.Random(name)
    pairs = list(itertools.product(DTYPES, DTYPES, (((3,), (3,)), ((3,), ()), ((), (3,)))))
    expected, found = [], []
    for a, b, shapes in generator.sample(pairs, 60):
        operands = [torch.full(s, v).to(d) for s, v, d in zip(shapes, (100.1, 43.1), (a, b), strict=True)]
        try:
            expected.append(BINARY[name](*operands))
        except RuntimeError:
            continue
        found.append(BINARY[name](*(t.to(DEVICE) for t in operands)))
        assert (found[-1].dtype, found[-1].shape) == (expected[-1].dtype, expected[-1].shape), (a, b, shapes)
    torch_xla.sync()
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f.cpu(), e)


# ---- comparisons with numbers


@fails_on_stock
@pytest.mark.parametrize("number", (-1e9, 0.1), ids=str)
def test_bfloat16_equals_the_number_it_was_made_of(number):
    assert_same(lambda x: x == number, HALVES["bf16"])


@fails_on_stock
def test_float32_equals_the_number_it_was_made_of():
    assert_same(lambda x: x == 0.1, FLOATS)


@fails_on_stock
def test_bfloat16_equals_a_tensor_of_one_number():
    assert_same(torch.eq, HALVES["bf16"], torch.tensor(-1e9))


@passes_on_stock
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_exact_numbers_are_as_in_stock(name):
    assert_same(lambda x: getattr(x, name)(1.5), HALVES["bf16"])
    assert_same(lambda x: getattr(x, name)(1.5), HALVES["f16"])
    assert_same(lambda x: getattr(x, name)(2.0), FLOATS)


@pytest.mark.parametrize("dtype", HALVES)
def test_all_comparisons_with_numbers(dtype):
    for name, number in itertools.product(COMPARISONS, (-1e9, 0.1, 0.3, 1e-9, 70000.0, 3, float("nan"))):
        assert_same(lambda x, name=name, number=number: getattr(x, name)(number), HALVES[dtype])


# ---- functions of bool


@fails_on_stock
@pytest.mark.parametrize("name", ("sqrt", "exp", "sigmoid", "tanh", "erf", "reciprocal"))
def test_float_functions_of_bool(name):
    assert_same(getattr(torch, name), BOOL)


# ---- normalisations


def normalised(function, shape, dtype, device, has_bias=True):
    """The result, and the gradients of input and weight."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype).to(device).requires_grad_()
    weight = torch.linspace(0.5, 1.5, 6).to(device).requires_grad_()
    bias = torch.linspace(-1, 1, 6).to(device) if has_bias else None
    out = function(x, weight, bias)
    out.float().square().sum().backward()
    return out.detach(), x.grad, weight.grad


NORMS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (2, 4, 6)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (2, 6, 4)),
}


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16), ids=str)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("has_bias", (True, False))
def test_normalisation_with_float32_parameters(name, dtype, has_bias):
    sides = [normalised(*NORMS[name], dtype, device, has_bias) for device in (DEVICE, "cpu")]
    for found, expected in zip(*sides, strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected, rtol=2e-2, atol=2e-2)


@fails_on_stock
@pytest.mark.parametrize("name", NORMS)
def test_normalisation_in_inference_mode(name):
    function, shape = NORMS[name]
    with torch.inference_mode():
        x, w = torch.randn(shape).to(bf16).to(DEVICE), torch.ones(6).to(DEVICE)
        assert function(x, w, w).dtype == bf16


@passes_on_stock
@pytest.mark.parametrize("name", NORMS)
def test_normalisation_under_autocast_is_as_in_stock(name):
    function, shape = NORMS[name]
    x, w = torch.randn(shape).to(bf16).to(DEVICE), torch.ones(6).to(DEVICE)
    with torch.autocast("xla", dtype=bf16):
        assert function(x, w, w).dtype == f32


# ---- the rest


@fails_on_stock
def test_compiled():
    def program(mask, i, h, w):
        return mask.cumsum(1), mask & i, i.clamp(max=0.5), h == -1e9, F.layer_norm(h, (3,), w, w)

    cpu = (BOOL, INTEGERS["u8"], HALVES["bf16"], torch.ones(3))
    found = torch.compile(program, backend="openxla")(*(t.to(DEVICE) for t in cpu))
    for f, e in zip(found, program(*cpu), strict=True):
        assert f.dtype == e.dtype
        torch.testing.assert_close(f.cpu(), e, rtol=2e-2, atol=2e-2)


@passes_on_stock
def test_the_rest_is_as_in_stock():
    x, i, b = FLOATS.to(DEVICE), INTEGERS["i64"].to(DEVICE), BOOL.to(DEVICE)
    h = HALVES["bf16"].to(DEVICE)
    results = [i.cumsum(0), x.clamp(max=0.5), torch.where(b, x, x), h == 1.5, x == 2, i + 1, i & i, x + i, x.sqrt()]
    found = [re.search(r"(\w+)\[.*\] aten::(\w+)\(.*\nreturn", ir(result)).groups() for result in results]
    assert found == [
        *(("s64", "cumsum"), ("f32", "clamp"), ("f32", "where"), ("pred", "eq"), ("pred", "eq")),
        *(("s64", "add"), ("s64", "bitwise_and"), ("f32", "add"), ("f32", "sqrt")),
    ]
    assert "xla::cast" not in ir(*results)


def test_threads():
    x, results = BOOL.to(DEVICE), []

    def work():
        results.extend((x.cumsum(1).dtype, (x & x.to(torch.uint8)).dtype) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(torch.int64, torch.uint8)] * 80
