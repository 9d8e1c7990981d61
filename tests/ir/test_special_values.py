"""Infinities, NaN, signed zeros and corners of functions: patches/torch_xla/special-values."""

import math
import os

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from ir_text import ir
from marks import fails_on_stock
from tensors import DEVICE

INF, NAN = float("inf"), float("nan")
NUMBERS = (0.0, -0.0, INF, -INF, 3.0, -3.0, 6.0, 5.5, -5.5, 6e4, -6e4, 1e-7)
"""Without NaN, which the minimum and the maximum of CPU-XLA drop; a TPU's do not."""

# Of -0.0 and 0.0 CPU-XLA takes either as the larger one in earlier releases, and as ci/test.sh compiles on most days.
CHOOSES_ZEROS = torch.__version__ >= "2.9" and "fusion_emitters=false" not in os.environ.get("XLA_FLAGS", "")
BOUNDED = [n for n in NUMBERS if CHOOSES_ZEROS or math.copysign(1, n) > 0 or n]

of_every_float = pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)


def assert_same(functions, *cpu, gradients=False):
    """Results, with the signs of zeros, and gradients are those of the CPU; all are computed in one graph."""
    found, expected = [], []
    for function in functions:
        for results, tensors in ((expected, cpu), (found, [t.to(DEVICE) for t in cpu])):
            first = tensors[0].detach().requires_grad_(gradients)
            result = function(first, *tensors[1:])
            results.append(result.detach())
            if gradients:
                results.append(torch.autograd.grad(result.sum(), first)[0])
    for f, e in zip(torch_xla._XLAC._xla_get_cpu_tensors(found), expected, strict=True):
        torch.testing.assert_close(f, e, equal_nan=True)
        assert torch.equal(f.signbit() & ~f.isnan(), e.signbit() & ~e.isnan())


@fails_on_stock
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
def test_bounds(dtype):
    """Stock's largest number of bfloat16 is an infinity, so that it is right there."""
    bounds = ({"min": 0}, {"max": 0}, {"min": -1.0}, {"max": 1.0}, {"min": -INF, "max": 2.0}, {"min": -2.0, "max": INF})
    clamped = [lambda x, b=b: x.clamp(**b) for b in bounds]
    assert_same([*clamped, lambda x: x.clamp_min(1), lambda x: x.clamp_max(1)], torch.tensor(BOUNDED, dtype=dtype))


@fails_on_stock
def test_numbers_in_the_place_of_infinities():
    x = torch.tensor([*NUMBERS, NAN], dtype=torch.bfloat16)
    assert_same([torch.nan_to_num, lambda x: x.nan_to_num(1.0), lambda x: x.nan_to_num(posinf=2.0)], x)


@fails_on_stock
@of_every_float
def test_infinities_in_the_place_of_numbers(dtype):
    """pytorch/pytorch's linalg.cond asks for them."""
    x = torch.tensor([*NUMBERS, NAN], dtype=dtype)
    replaced = ({"nan": INF}, {"nan": 1.0, "posinf": INF}, {"neginf": -INF, "posinf": NAN}, {"nan": 1e300})
    assert_same([lambda x, r=r: x.nan_to_num(**r) for r in replaced], x)


@fails_on_stock
@pytest.mark.since("2.6", "on-device, which inverts the matrix")
@pytest.mark.parametrize("p", ("fro", INF, -INF, 1, -1))
def test_condition_numbers(p):
    x = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    assert_same([lambda x: torch.linalg.cond(x, p)], x)


@fails_on_stock
@of_every_float
@pytest.mark.since("2.6", "numbers below the smallest normal one in XLA:CPU")
def test_remainders(dtype):
    numbers = torch.tensor([*NUMBERS, NAN], dtype=dtype)
    a, b = numbers.repeat_interleave(len(numbers)), numbers.repeat(len(numbers))
    by_numbers = [lambda a, _, n=n: a % n for n in (INF, -INF, 2, -2, 0.0)]
    assert_same([torch.remainder, torch.fmod, torch.floor_divide, lambda _, b: 5.5 % b, *by_numbers], a, b)


@fails_on_stock
@of_every_float
@pytest.mark.since("2.6", "logit of float16 on the CPU")
def test_logit_of_what_is_not_between_eps_and_the_rest(dtype):
    x = torch.tensor([-0.9, -1e-5, 0.0, 0.5, 0.99, 1.0, 7.0, INF, -INF], dtype=dtype)
    assert_same([lambda x, eps=eps: x.logit(eps=eps) for eps in (1e-3, 0.25)], x)


@fails_on_stock
@of_every_float
def test_logsumexp_of_infinities(dtype):
    x = torch.tensor([[INF, 0.0], [INF, -INF], [-INF, -INF], [0.0, 1.0], [NAN, INF], [INF, INF]], dtype=dtype)
    forms = (-1, 0, (0, 1))
    assert_same([lambda x, d=d, k=k: x.logsumexp(d, keepdim=k) for d in forms for k in (False, True)], x)


@pytest.mark.since("2.9", "the signs of zero of the CPU's activations")
@fails_on_stock
@of_every_float
def test_activations(dtype):
    x = torch.tensor(BOUNDED, dtype=dtype)
    assert_same([F.logsigmoid], torch.tensor([*NUMBERS, NAN], dtype=dtype))
    assert_same([F.hardsigmoid, F.relu6, F.hardtanh, lambda x: F.hardtanh(x, -3, 6)], x, gradients=True)


@fails_on_stock
@of_every_float
def test_nan_passes_a_threshold(dtype):
    numbers = torch.tensor([*NUMBERS, 0.5, -0.5, NAN], dtype=dtype)
    functions = [F.relu, lambda x: (x * 1).relu_()]
    functions += [lambda x: F.threshold(x, 0.5, 7.0), lambda x: F.threshold(x * 1, 5.5, -1.0, inplace=True)]
    assert_same(functions, numbers, gradients=True)


@fails_on_stock
@of_every_float
@pytest.mark.default_pin
def test_softshrink(dtype):
    """But for the signs of zero, which the CPU has in a vector of eight and not in what is left."""
    x = torch.tensor([*NUMBERS, 0.3, 0.31, -0.3, NAN], dtype=dtype)
    for bound in (0.5, 0.3, 0.0):
        found, expected = F.softshrink(x.to(DEVICE), bound).cpu(), F.softshrink(x, bound)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@fails_on_stock
@pytest.mark.since("2.6", "this IR of a number")
def test_ir_of_relu():
    """A maximum, and for its gradient a comparison of what it is of and a selection."""
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    torch_xla.sync()
    y = x.relu()
    ir(y).expect("""\
%0 = f32[3] xla::device_data()
%1 = f32[3] aten::relu(%0)
return %1
""")
    ir(torch.autograd.grad(y, x, torch.ones_like(y))[0]).expect("""\
%0 = s64[] prim::Constant()
%1 = s64[] prim::Constant()
%2 = f32[3] xla::device_data()
%3 = pred[3] aten::le(%2, %1)
%4 = f32[] prim::Constant()
%5 = f32[3] aten::expand(%4)
%6 = f32[3] aten::masked_fill(%5, %3, %0)
return %6
""")


@fails_on_stock
@pytest.mark.since("2.6", "this IR of a number")
def test_ir_of_the_gradient_of_a_threshold():
    """Only of a relu, and of its corner, does the argument say what the result does."""
    x = torch.ones(3, device=DEVICE)
    torch_xla.sync()
    y = x.relu()
    ir(torch.ops.aten.threshold_backward(y, y, 0.5)).expect("""\
%0 = s64[] prim::Constant()
%1 = f64[] xla::device_data()
%2 = f32[3] xla::device_data()
%3 = f32[3] aten::relu(%2)
%4 = pred[3] aten::le(%3, %1)
%5 = f32[3] aten::masked_fill(%3, %4, %0)
return %5
""")
