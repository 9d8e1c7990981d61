"""Quotients of integers: patches/torch_xla/exact-integers."""

import pytest
import torch
import torch_xla
from compared import assert_all_same, assert_same
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE

i64, i32, i16, i8, u8 = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8

fails_on_later_stock = pytest.mark.fails_on_stock("2.9", "2.8", "2.7", "2.6")  # 2.1 hands powers to the CPU


def integers(dtype):
    """Pairs of all sizes, their neighbours, and the ends of the dtype; no pair overflows or divides by 0."""
    info, generator = torch.iinfo(dtype), torch.Generator().manual_seed(0)
    numbers = [torch.tensor([info.min, info.max, info.max - 1, 1, 2, 3, 100, 7])]
    for bits in range(1, info.bits):
        near = torch.randint(2 ** (bits - 1), 2**bits - 1, (6,), generator=generator) if bits > 1 else numbers[0][3:4]
        numbers += [near, -near] if info.min < 0 else [near]
    some = torch.cat(numbers)
    a, b = some.repeat_interleave(len(some)), some.repeat(len(some))
    kept = (b != 0) & ~((a == info.min) & (b == -1))
    a, b = a[kept], b[kept]
    multiple = (a // b) * b  # where a rounded quotient is one too many, or too few
    return torch.cat([a, multiple, multiple - 1]).to(dtype), torch.cat([b, b, b]).to(dtype)


def quotients(a, b):
    floor, trunc = {"rounding_mode": "floor"}, {"rounding_mode": "trunc"}
    return [a // b, torch.div(a, b, **floor), torch.div(a, b, **trunc), a.clone().div_(b, **floor)]


@passes_on_stock
@pytest.mark.parametrize("dtype", (i64, i32, torch.float32), ids=str)
@pytest.mark.parametrize("on_xla", (0, 1))
def test_operands_of_the_cpu_are_sent(dtype, on_xla):
    # Of another length each: stock has one key for x / y and y / x (graph-identity).
    given = torch.tensor([7, -7, 8, 6][on_xla:]).to(dtype), torch.tensor([2, 2, -3, 4][on_xla:]).to(dtype)
    found = quotients(*(x.to(DEVICE) if i == on_xla else x for i, x in enumerate(given)))[:3]
    assert_all_same(found, quotients(*given)[:3])


@fails_on_stock
@pytest.mark.parametrize("dtype", (i64, i32), ids=str)
def test_a_power_of_two_is_a_shift(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, -9, -8, -1, 0, 1, 7, 8, info.max - 1, info.max], dtype=dtype)
    on_xla = x.to(DEVICE)
    assert ("shift" in ir(on_xla // 8)) == (torch.__version__ >= "2.6")
    assert_same([lambda x, bits=bits: x // 2**bits for bits in range(info.bits - 1)], x)
    assert_same([lambda x, m=m: torch.div(x, 4, rounding_mode=m) for m in ("floor", "trunc")], x)


@fails_on_stock
@pytest.mark.parametrize("dtype", (i64, i32), ids=str)
def test_every_bit(dtype):
    a, b = integers(dtype)
    assert_all_same(quotients(a.to(DEVICE), b.to(DEVICE)), quotients(a, b))


@fails_on_stock
@pytest.mark.since("2.6", "the switch, which is native-attention's")
def test_every_bit_as_a_tpu_divides():
    from torch_xla._native_attention import trace_for_tpu

    a, b = integers(i64)
    trace_for_tpu(True)
    try:
        found = quotients(a.to(DEVICE), b.to(DEVICE))
    finally:
        trace_for_tpu(False)
    assert "addcdiv" not in ir(found[0])
    assert_all_same(found, quotients(a, b))


@passes_on_stock
@pytest.mark.parametrize("dtype", (i16, i8, u8), ids=str)
def test_narrow_integers_are_stock(dtype):
    a, b = integers(dtype)
    assert_all_same(quotients(a.to(DEVICE), b.to(DEVICE)), quotients(a, b))


@fails_on_stock
def test_numbers_and_mixed_operands():
    a = torch.tensor([100000001, -100000001, 2**40 + 7, 5])
    narrow = torch.tensor([100000001, -100000001, 2**31 - 1, 5], dtype=i32)
    byte = torch.tensor([3, 7, 255, 2], dtype=u8)

    def all_of(a, narrow, byte):
        return [a // 3, a // -3, (2**40) // a, narrow // 7, narrow // byte, a // narrow, a[0] // narrow, a // a[3]]

    assert_all_same(all_of(a.to(DEVICE), narrow.to(DEVICE), byte.to(DEVICE)), all_of(a, narrow, byte))


@fails_on_stock
@pytest.mark.since("2.6", "torch.unravel_index")
def test_unravel_index():
    flat, shape = torch.tensor([100000001, 2**40 + 7]), (2**21 + 1, 3, 2**21)
    assert_all_same(torch.unravel_index(flat.to(DEVICE), shape), torch.unravel_index(flat, shape))


@passes_on_stock
@pytest.mark.parametrize("dtype", (i64, i32, i8), ids=str)
def test_remainders_and_powers_are_stock(dtype):
    a, b = integers(dtype)
    few = torch.tensor([3, 7, -2], dtype=dtype)
    assert_same([torch.remainder, torch.fmod], a, b)
    assert_same(lambda x: x**20, few)


def bases_and_exponents(dtype):
    """All pairs of bases and exponents, of which most overflow."""
    info = torch.iinfo(dtype)
    bases = torch.tensor([0, 1, 2, 3, 6, 31, 100, info.max, info.min, max(info.min, -1), max(info.min, -3)])
    exponents = [0, 1, 2, 5, 7, 8, 31, 32, 33, 63, 64, 65, 100, info.max, info.max - 1]
    exponents += [-1, -2, info.min] if info.min < 0 else []
    exponents = torch.tensor(exponents).clamp(max=info.max)
    return [x.reshape(-1).to(dtype) for x in torch.meshgrid(bases, exponents, indexing="ij")]


@fails_on_later_stock
@pytest.mark.parametrize("dtype", (i64, i32, i16, i8, u8), ids=str)
def test_powers_that_overflow(dtype):
    """Modulo two to the power of the dtype's bits, as on the CPU; XLA reads six bits of an exponent."""
    bases, exponents = bases_and_exponents(dtype)
    assert_same([torch.pow, lambda x, n: x.clone().pow_(n)], bases, exponents)
    assert_same([lambda x, n=n: n**x for n in (0, 2, 3, 10, 31)], exponents)
    assert_same([lambda x, n=n: x**n for n in (0, 2, 7, 8, 31, 33, 64, 100, 127)], bases)


@fails_on_later_stock
def test_powers_of_two_dtypes():
    few = torch.tensor([3, 2, -7])
    pairs = [(few.to(a), few.abs().mul(40).to(b)) for a in (i64, i32, u8) for b in (i64, u8)]
    assert_all_same([a.to(DEVICE) ** b.to(DEVICE) for a, b in pairs], [a**b for a, b in pairs])
    assert_same([torch.pow, lambda x, _: x ** torch.tensor(70)], few, torch.tensor(70))


@passes_on_stock
@pytest.mark.since("2.6", "this IR of a power")
def test_ir_of_a_small_power():
    x = torch.tensor([7]).to(DEVICE)
    torch_xla.sync()
    ir(x**5).expect("""\
%0 = s64[] prim::Constant()
%1 = s64[1] xla::device_data()
%2 = s64[1] aten::pow(%1, %0)
return %2
""")


@fails_on_later_stock
def test_negative_powers_are_refused():
    """By the same sentence as on the CPU."""
    for x in (torch.tensor([2, 1]), torch.tensor([2, 1]).to(DEVICE), torch.tensor([2], dtype=u8).to(DEVICE)):
        with pytest.raises(RuntimeError, match="Integers to negative integer powers are not allowed"):
            torch.pow(x, -1)
