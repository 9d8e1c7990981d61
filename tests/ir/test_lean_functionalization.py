"""In-place operators without a second run on meta tensors: patches/torch_xla/lean-functionalization."""

import itertools
import re
import sys

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE
from torch.nn import functional
from torch_xla.debug import metrics

f32, bf16, f64, i32, i64, b, c64 = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
)


def numbers(shape, dtype, at=0):
    return (torch.arange(torch.Size(shape).numel()) % 7 + 1 + at).reshape(shape).to(dtype)


def method(name, *arguments, **options):
    return lambda x, *others: getattr(x, name)(*others, *arguments, **options)


NUMBERS = (2, 1.5, True, 1j)
ARITHMETIC = ("add_", "sub_", "mul_", "div_", "pow_")
COMPARISONS = ("eq_", "ne_", "lt_", "le_", "gt_", "ge_")
SHIFTS = ("bitwise_left_shift_", "bitwise_right_shift_")
#: Elementwise operators of one tensor that check the dtype of the result themselves.
UNARY = [
    "abs_",
    "acos_",
    "acosh_",
    "asin_",
    "asinh_",
    "atan_",
    "atanh_",
    "bitwise_not_",
    "ceil_",
    "cos_",
    "cosh_",
    "deg2rad_",
    "digamma_",
    "erf_",
    "erfc_",
    "erfinv_",
    "exp2_",
    "exp_",
    "expm1_",
    "exponential_",
    "floor_",
    "frac_",
    "i0_",
    "lgamma_",
    "log10_",
    "log1p_",
    "log2_",
    "log_",
    "logical_not_",
    "logit_",
    "nan_to_num_",
    "neg_",
    "rad2deg_",
    "reciprocal_",
    "relu_",
    "round_",
    "rsqrt_",
    "sgn_",
    "sigmoid_",
    "sign_",
    "sin_",
    "sinc_",
    "sinh_",
    "sqrt_",
    "square_",
    "tan_",
    "tanh_",
    "trunc_",
]
#: Operators that write to an expanded tensor on the CPU, too.
KEEPING = {
    "tril_": method("tril_"),
    "triu_": method("triu_", 1),
    "threshold_": lambda x: functional.threshold_(x, 2, 0),
    "masked_fill_ 2": lambda x: x.masked_fill_(torch.ones(x.shape[-1:], dtype=b, device=x.device), 2),
    "masked_fill_ 1.5": lambda x: x.masked_fill_(torch.ones(2, 3, dtype=b, device=x.device), 1.5),
    "masked_fill_ tensor": lambda x: x.masked_fill_(torch.ones((), dtype=b, device=x.device), x.sum().to(x.dtype)),
    "masked_fill_ vector": lambda x: x.masked_fill_(torch.ones((), dtype=b, device=x.device), x.new_ones(1)),
}
ALONE = {name: method(name) for name in UNARY} | KEEPING
ALONE |= {
    "clamp_": method("clamp_", 0, 1),
    "cumsum_": method("cumsum_", 0),
    "cumprod_": method("cumprod_", -1),
    "cumsum_ of a dtype": method("cumsum_", 0, dtype=bf16),
    "cumsum_ beyond": method("cumsum_", 2),
    "logit_ .1": method("logit_", 0.1),
    "round_ 1": method("round_", decimals=1),
    "clamp_min_ 1": method("clamp_min_", 1),
    "clamp_max_ 1.5": method("clamp_max_", 1.5),
    "clamp_ of one bound": method("clamp_", max=1),
    "clamp_ of none": method("clamp_", None, None),
    "exponential_ below 0": method("exponential_", -1.0),
    "celu_": functional.celu_,
    "elu_": functional.elu_,
    "gelu_": torch._C._nn.gelu_,
    "gelu_ tanh": lambda x: torch._C._nn.gelu_(x, approximate="tanh"),
    "hardsigmoid_": lambda x: functional.hardsigmoid(x, inplace=True),
    "hardswish_": lambda x: functional.hardswish(x, inplace=True),
    "mish_": lambda x: functional.mish(x, inplace=True),
    "silu_": lambda x: functional.silu(x, inplace=True),
    "hardtanh_": lambda x: functional.hardtanh(x, inplace=True),
    "leaky_relu_": lambda x: functional.leaky_relu(x, inplace=True),
    **{f"{n} {v}": method(n, v) for n in (*ARITHMETIC, "remainder_", "fmod_", "floor_divide_") for v in NUMBERS},
    **{f"div_ {m} {v}": method("div_", v, rounding_mode=m) for m in ("trunc", "floor") for v in NUMBERS},
    **{f"{n} {v}": method(n, v) for n in (*COMPARISONS, "copysign_", *SHIFTS) for v in NUMBERS},
}
WITH_ONE = {
    **{name: method(name) for name in (*ARITHMETIC, "remainder_", "fmod_", "floor_divide_", "atan2_")},
    **{name: method(name) for name in ("bitwise_and_", "bitwise_or_", "bitwise_xor_", "clamp_min_", "clamp_max_")},
    **{name: method(name) for name in (*COMPARISONS, *SHIFTS, "logical_and_", "logical_or_", "logical_xor_")},
    **{name: method(name) for name in ("copysign_", "xlogy_", "hypot_", "heaviside_", "nextafter_", "gcd_", "lcm_")},
    **{name: method(name) for name in ("igamma_", "igammac_")},
    "clamp_ tensor": lambda x, low: x.clamp_(low),
    "div_ floor": method("div_", rounding_mode="floor"),
    **{f"add_ alpha={v}": method("add_", alpha=v) for v in NUMBERS},
    **{f"sub_ alpha={v}": method("sub_", alpha=v) for v in NUMBERS},
    **{f"lerp_ {v}": method("lerp_", v) for v in NUMBERS},
}
WITH_TWO = {
    "lerp_": method("lerp_"),
    "addcmul_": method("addcmul_"),
    "addcdiv_": method("addcdiv_"),
    "addcmul_ value=2": method("addcmul_", value=2),
    "addcmul_ value=True": method("addcmul_", value=True),
    "addcdiv_ value=.5": method("addcdiv_", value=0.5),
}
OPERATORS = {**ALONE, **WITH_ONE, **WITH_TWO}

#: What a tensor is of a contiguous one on its device.
KINDS = {
    "plain": lambda shape: (shape, lambda t: t),
    "transposed": lambda shape: (shape[::-1], lambda t: t.t()),
    "sliced": lambda shape: ((shape[0] + 1, *shape[1:]), lambda t: t[1:]),
    "expanded": lambda shape: ((1, *shape[1:]), lambda t: t.expand(shape)),
    "some rows, expanded": lambda shape: ((9, *shape[1:]), lambda t: t[:1].expand(shape)),
    "a row of an expanded one": lambda shape: ((1, *shape), lambda t: t.expand(3, *shape)[1]),
}
OVERLAPPING = ("expanded", "some rows, expanded")


def tensor(device, at, shape=(2, 3), dtype=f32, kind="plain"):
    shape, of = KINDS[kind](shape)
    return of(numbers(shape, dtype, at).to(device))


def outcome(function, operands, device):
    """The dtype and shape of the result, or the words of the refusal, after which the tensor is what it was."""
    tensors = [tensor(device, at, *operand) for at, operand in enumerate(operands)]
    before = tensors[0].dtype, tensors[0].shape
    try:
        result = function(*tensors)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        assert (tensors[0].dtype, tensors[0].shape) == before
        return "refused", str(error)
    assert result is tensors[0]
    return result.dtype, result.shape


SHAPES = ((2, 3), (3,), (), (1, 3), (2, 1), (0, 3), (2, 2, 3), (4,))
DTYPES = (f32, bf16, i32, b, c64)


def operands_of(name):
    """Shapes, dtypes and kinds of the operands of an operator."""
    shape = (2, 3)
    dtypes = tuple(d for d in DTYPES if d != b or not name.startswith("lerp_"))  # bools end the process on stock 2.6
    if name in ALONE:
        yield from ([(shape, dtype)] for dtype in (*DTYPES, f64))
        yield from ([(shape, f32, kind)] for kind in KINDS)
        yield from ([(shape, f32)] for shape in ((), (0, 3)))
    elif name in WITH_ONE:
        yield from ([(shape, d), (shape, e)] for d, e in itertools.product(dtypes, dtypes))
        yield from ([(s, d), ((), e)] for s in (shape, ()) for d in (f32, bf16, i32) for e in (f32, i32, f64, c64))
        yield from ([(s, f32), (t, f32)] for s, t in itertools.product(SHAPES, SHAPES))
        yield from ([(shape, f32, kind), (shape, f32)] for kind in KINDS)
        yield from ([(shape, f32), (shape, f32, kind)] for kind in KINDS)
    else:
        yield from ([(shape, d) for d in three] for three in itertools.product((f32, bf16, i32), repeat=3))
        yield from ([(shape, d) for d in three] for three in ((c64, c64, c64), (f32, f32, c64)))
        yield from ([(s, f32) for s in shapes] for shapes in itertools.product(SHAPES[:5], repeat=3))
        yield from ([(shape, f32, kind), (shape, f32), (shape, f32)] for kind in KINDS)


#: What the topic refuses itself.
OURS = re.compile(r"single memory location|doesn't match the broadcast shape|can't be cast to the desired output type")

#: What the CPU refuses and stock takes for other reasons than the shape and dtype of a result.
NOT_OURS = re.compile(
    r"Integer division|not (yet )?implemented|Subtraction, the|not supported|Boolean alpha|alpha must|support complex"
)


#: What stock refuses in all calls that the CPU refuses.
REFUSED = {"copysign_ 1j", "sub_ True", "pow_ 1j", "add_ alpha=True", "sub_ alpha=True", "lerp_ 1j", "clamp_ of none"}
REFUSED |= {"exponential_ below 0", "remainder_ 1j", "fmod_ 1j", "floor_divide_ 1j", "div_ trunc 1j", "div_ floor 1j"}
REFUSED |= {"bitwise_left_shift_ 1j", "bitwise_right_shift_ 1j", "cumsum_ of a dtype", "cumsum_ beyond", "gcd_", "lcm_"}
REFUSED |= {"bitwise_and_", "bitwise_or_", "bitwise_xor_", *KEEPING}


#: Operators that earlier pins are tried with; some of the others end the process there, on stock too, for bools.
ON_EARLIER_PINS = re.compile(
    "(abs|add|addcdiv|addcmul|cos|exp|hardtanh|leaky_relu|lerp|log|mul|neg|pow|reciprocal|relu|rsqrt|sigmoid|silu|sin|"
    r"sqrt|sub|tanh)_|div_( [\d.T]\S*)?$|clamp_(min_ 1|max_ 1\.5)?$"
)


def named(name, *marks):
    """The name of an operator as a parameter, for the pins that it is tried on."""
    later = pytest.mark.since("2.9", "bools, which this operator is given, that do not end the process")
    return pytest.param(name, marks=marks if ON_EARLIER_PINS.match(name) else (*marks, later))


@pytest.mark.parametrize("name", [named(n) if n in REFUSED else named(n, fails_on_stock) for n in OPERATORS])
def test_refused_or_taken_as_on_the_cpu(name):
    others = []
    for operands in operands_of(name):
        found, expected = (outcome(OPERATORS[name], operands, device) for device in (DEVICE, "cpu"))
        if found == expected or found[0] == expected[0] == "refused":
            continue
        if expected[0] == "refused" and NOT_OURS.search(expected[1]):
            continue
        if found[0] == "refused" and not OURS.search(found[1]):  # stock does not have it
            continue
        others.append(f"{operands}: {found}, on the CPU {expected}")
    assert not others, "\n".join(others)


@fails_on_stock
@pytest.mark.parametrize("kind", OVERLAPPING)
@pytest.mark.parametrize("name", [named(n) for n in OPERATORS if n not in KEEPING])
def test_expanded_destinations_are_refused(name, kind):
    operands = [
        tensor(DEVICE, at, kind=kind if at == 0 else "plain")
        for at in range(1 + (name in WITH_ONE) + 2 * (name in WITH_TWO))
    ]
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        OPERATORS[name](*operands)


def index(*shape):
    """As operand: an index [shape] of int64 whose numbers are below 2."""
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 2


def of(*shape, dtype=f32):
    return numbers(shape, dtype, 1)


#: Calls of operators that write by an index or a mask, or add a product: self is [2, 3], if no shape is given.
BY_INDEX = {
    **{
        f"{name} {case}": (name, operands[:3], *operands[3:])
        for name in ("index_copy_", "index_add_")
        for case, operands in {
            "rows": (0, index(2), of(2, 3)),
            "last dimension": (-1, index(2), of(2, 2)),
            "no row": (0, index(0), of(0, 3)),
            "a number": (0, index(), of(3)),
            "integers": (0, index(2), of(2, 3, dtype=i32), i32),
            "int32": (0, index(2).int(), of(2, 3)),
            "dimension 2": (2, index(2), of(2, 3)),
            "too few rows": (0, index(2), of(1, 3)),
            "wide rows": (0, index(2), of(2, 4)),
            "fewer dimensions": (0, index(3), of(3)),
            "matrix of indices": (0, index(2, 1), of(2, 3)),
        }.items()
    },
    "index_add_ alpha": ("index_add_", (0, index(2), of(2, 3)), {"alpha": 2}),
    **{
        f"{name} {case}": (name, operands[:3], *operands[3:])
        for name in ("scatter_", "scatter_add_")
        for case, operands in {
            "rows": (0, index(2, 3), of(2, 3)),
            "fewer": (-1, index(1, 2), of(2, 3)),
            "longer": (0, index(4, 3), of(4, 3)),
            "no index": (0, index(0, 3), of(2, 3)),
            "integers": (0, index(2, 3), of(2, 3, dtype=i32), i32),
            "integers into floats": (0, index(2, 3), of(2, 3, dtype=i32)),
            "too wide": (0, index(2, 4), of(2, 4)),
            "beyond the source": (0, index(2, 3), of(1, 3)),
            "fewer dimensions": (0, index(3), of(3)),
            "dimension -3": (-3, index(2, 3), of(2, 3)),
        }.items()
    },
    "index_fill_": ("index_fill_", (0, index(2), 1.5)),
    "index_fill_ by one": ("index_fill_", (-1, torch.tensor(1), 2)),
    "index_fill_ a fraction into integers": ("index_fill_", (0, index(2), 1.5), i32),
    "index_fill_ by a matrix": ("index_fill_", (0, index(2, 1), 1)),
    "index_fill_ dimension 2": ("index_fill_", (2, index(2), 1)),
    "scatter_ a number": ("scatter_", (1, index(2, 1), 1)),
    "scatter_ a fraction into integers": ("scatter_", (1, index(2, 1), 1.5), i32),
    "scatter_ a number, too long": ("scatter_", (1, index(3, 1), 1)),
    "masked_fill_": ("masked_fill_", (index(2, 3).bool(), of())),
    "masked_fill_ by a row": ("masked_fill_", (index(3).bool(), of())),
    "masked_fill_ of a vector": ("masked_fill_", (index(2, 3).bool(), of(1))),
    "masked_fill_ of integers": ("masked_fill_", (index(2, 3).bool(), of(dtype=i32))),
    "masked_fill_ by more": ("masked_fill_", (index(2, 2, 3).bool(), of())),
    "masked_fill_ by integers": ("masked_fill_", (index(2, 3), of())),
    "addmm_": ("addmm_", (of(2, 4), of(4, 3)), {"beta": 0.5, "alpha": 2}),
    "addmm_ that broadcasts": ("addmm_", (of(4, 4), of(4, 3))),
    "addmm_ of other lengths": ("addmm_", (of(2, 4), of(5, 3))),
    "addmm_ of bfloat16": ("addmm_", (of(2, 4, dtype=bf16), of(4, 3, dtype=bf16))),
    "addmm_ of batches": ("addmm_", (of(2, 2, 4), of(2, 4, 3)), (2, 2, 3)),
    "baddbmm_ of batches": ("baddbmm_", (of(2, 2, 4), of(2, 4, 3)), (2, 2, 3)),
    "baddbmm_ of another batch": ("baddbmm_", (of(3, 2, 4), of(3, 4, 3)), (2, 2, 3)),
    "baddbmm_ of matrices": ("baddbmm_", (of(2, 4), of(4, 3))),
}


def call_by_index(name, device, kind="plain"):
    """Self, the operator, its other operands and its options."""
    operator, operands, *more = BY_INDEX[name]
    given = {type(each): each for each in more}
    self = tensor(device, 0, given.get(tuple, (2, 3)), given.get(torch.dtype, f32), kind)
    there = [each.to(device) if isinstance(each, torch.Tensor) else each for each in operands]
    return self, operator, there, given.get(dict, {})


def written_by_index(name, device, kind):
    """Self after the call, or what raised."""
    self, operator, operands, options = call_by_index(name, device, kind)
    try:
        assert getattr(self, operator)(*operands, **options) is self
        return self.cpu()
    except (RuntimeError, IndexError, AssertionError) as error:  # the last one of what is run on meta tensors
        return str(error)


@pytest.mark.since("2.9", "a refusal of each of these calls; some end the process")
@passes_on_stock
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OVERLAPPING])
@pytest.mark.parametrize("name", BY_INDEX)
def test_writes_by_an_index_are_those_of_the_cpu(name, kind):
    if "batch" in name and kind == "transposed":
        pytest.skip("of matrices alone")
    found, expected = (written_by_index(name, device, kind) for device in (DEVICE, "cpu"))
    if isinstance(expected, str):
        assert isinstance(found, str)
    else:
        assert isinstance(found, torch.Tensor), found
        torch.testing.assert_close(found, expected)


def as_complex(x):
    return torch.view_as_complex(x.view(3, 2))


EXPANDED_TO_THEMSELVES = {
    "as complex": lambda x: (as_complex(x.view(3, 2).expand(3, 2)), 2j),
    "real part": lambda x: (as_complex(x).expand(3).real, 2),
    "imaginary part of the conjugate": lambda x: (as_complex(x).expand(3).conj().imag, 2),
    "as integers": lambda x: (x.expand(6).view(torch.int32), 2),
    "as reals": lambda x: (torch.view_as_real(as_complex(x).unfold(0, 3, 3)), 2),
}


@passes_on_stock
@pytest.mark.parametrize("view", EXPANDED_TO_THEMSELVES.values(), ids=EXPANDED_TO_THEMSELVES)
def test_views_that_are_expanded_to_themselves_are_written(view):
    found = {}
    for device in ("cpu", DEVICE):
        x = torch.arange(1.0, 7.0).to(device)
        written, number = view(x)
        written.add_(number)
        found[torch.device(device).type] = x.tolist()
    assert found["xla"] == found["cpu"]


@fails_on_stock
def test_complex_views_that_are_expanded_are_refused():
    x = torch.arange(6.0).to(DEVICE)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.view_as_complex(x.view(3, 1, 2).expand(3, 2, 2)).mul_(2)


@fails_on_stock
@pytest.mark.parametrize("shape", ((3,), (2, 3)), ids=str)
def test_a_gradient_that_is_expanded_is_written_to(shape):
    """torch copies it: it is a tensor of its own, as for unscaling and clipping."""
    found = {}
    for device in ("cpu", DEVICE):
        w = torch.ones(shape, device=device, requires_grad=True)
        (w.sum() * 128).backward()
        w.grad.mul_(1 / 128)
        w.grad[0] = 5
        w.sum().backward()
        torch.nn.utils.clip_grad_norm_([w], 1.0)
        found[torch.device(device).type] = w.grad.cpu()
    torch.testing.assert_close(found["xla"], found["cpu"])


@fails_on_stock
def test_a_refusal_leaves_no_node():
    x = numbers((1, 3), f32).to(DEVICE)
    with pytest.raises(RuntimeError):
        x.expand(2, 3).add_(1)
    ir(x).expect("""\
%0 = f32[1,3] xla::device_data()
return %0
""")


@passes_on_stock
def test_torchs_own_words():
    with pytest.raises(RuntimeError, match=r"output with shape .* doesn't match the broadcast shape"):
        torch.zeros(3, device=DEVICE).add_(torch.ones(2, 3, device=DEVICE))
    with pytest.raises(RuntimeError, match="expected dtype"):
        torch.zeros(3, device=DEVICE).lerp_(torch.ones(3, device=DEVICE, dtype=bf16), 0.5)


@fails_on_stock
def test_results_of_a_higher_category_are_refused():
    integers = torch.ones(3, dtype=i32, device=DEVICE)
    for write in (method("div_", 2), method("mul_", 0.5), method("add_", 0.5), method("mul_", 1j)):
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type Int"):
            write(integers)
    assert integers.cpu().tolist() == [1, 1, 1]


def adamw_step(p, grad, average, square):
    p.mul_(0.99)
    average.lerp_(grad, 0.1)
    square.mul_(0.9).addcmul_(grad, grad, value=0.1)
    p.addcdiv_(average, square.sqrt().add_(1e-8), value=-0.1)


@passes_on_stock
def test_values_of_a_step():
    found, expected = ([numbers((2, 3), f32, at).to(device) for at in range(4)] for device in (DEVICE, "cpu"))
    for _ in range(2):
        adamw_step(*found)
        adamw_step(*expected)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f.cpu(), e)


@passes_on_stock
def test_the_ir():
    x, y = (numbers((2, 3), f32, at).to(DEVICE) for at in range(2))
    count = torch.ones((), dtype=i64).to(DEVICE)
    x.mul_(0.5).add_(y, alpha=2).addcmul_(y, y, value=3).clamp_(min=0, max=1).relu_()
    x.t()[0].sub_(1)
    count.add_(1)
    ir(x, count).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] prim::Constant()
%2 = f32[] prim::Constant()
%3 = f32[] prim::Constant()
%4 = s64[] xla::device_data()
%5 = f32[2,3] xla::device_data()
%6 = f32[] xla::device_data()
%7 = f32[] xla::device_data()
%8 = f32[2,3] xla::device_data()
%9 = f32[2,3] aten::mul(%8, %7)
%10 = f32[2,3] aten::add(%9, %5, %6)
%11 = f32[2,3] aten::addcmul(%10, %5, %5, %4)
%12 = f32[2,3] aten::clamp(%11, %3, %2)
%13 = f32[2,3] aten::relu(%12)
%14 = f32[3,2] aten::permute(%13)
%15 = f32[1,2] xla::generic_slice(%14)
%16 = f32[2] aten::view(%15)
%17 = f32[2] aten::sub(%16, %1, %0)
%18 = f32[1,2] aten::view(%17)
%19 = f32[3,2] aten::permute(%13)
%20 = f32[3,2] xla::update_slice(%19, %18)
%21 = f32[2,3] aten::permute(%20)
%22 = s64[] prim::Constant()
%23 = s64[] prim::Constant()
%24 = s64[] prim::Constant()
%25 = s64[] aten::add(%24, %23, %22)
return %21, %25
""")


@passes_on_stock
def test_views_see_what_is_written():
    x = numbers((2, 3), f32).to(DEVICE)
    rows, columns = x[1], x.t()
    columns.mul_(10)
    rows.add_(1)
    x.sub_(1)
    assert x.cpu().tolist() == [[9, 19, 29], [40, 50, 60]]
    assert rows.cpu().tolist() == [40, 50, 60]
    assert columns.cpu().tolist() == [[9, 40], [19, 50], [29, 60]]


@passes_on_stock
def test_autograd_of_what_is_written():
    results = []
    for device in (DEVICE, "cpu"):
        leaf = numbers((2, 3), f32).to(device).requires_grad_()
        x = leaf.clone().mul_(leaf).sigmoid_() * 2
        x[0].lerp_(leaf[1], 0.25)
        (grad,) = torch.autograd.grad(x.sum(), leaf)
        results.append(grad.cpu())
    torch.testing.assert_close(*results)


# ---- set_


@fails_on_stock
def test_a_tensor_that_is_set_can_be_written():
    x, y = torch.zeros(3).to(DEVICE), torch.ones(5).to(DEVICE)
    part = x[:2]
    x.set_(y)
    part.add_(3)
    x.add_(1)
    assert (x.tolist(), part.tolist(), y.tolist()) == ([2.0] * 5, [3.0] * 2, [2.0] * 5)
    x.set_(x)
    x.add_(1)
    assert y.tolist() == [3.0] * 5


@fails_on_stock
def test_a_detached_tensor_that_is_set_leaves_its_origin():
    x = torch.nn.Parameter(torch.zeros(3).to(DEVICE))
    x.data.set_(torch.ones(3).to(DEVICE))
    x.data.add_(2)
    assert x.tolist() == [2.0] * 3
    with torch.no_grad():
        x.set_(torch.ones(2).to(DEVICE))
    (x * 2).sum().backward()
    assert (x.tolist(), x.grad.tolist(), x.is_leaf) == ([1.0] * 2, [2.0] * 2, True)


@passes_on_stock
def test_what_cannot_be_set_is_refused():
    x = torch.zeros(3).to(DEVICE)
    with pytest.raises(RuntimeError, match="type"):
        x.set_(torch.ones(3, dtype=torch.int64).to(DEVICE))
    x.set_()
    assert list(x.shape) == [0]


@fails_on_stock
def test_a_parametrization_of_a_module_on_the_device_is_trained():
    results = []
    for device in ("cpu", DEVICE):
        layer = torch.nn.Linear(2, 2, bias=False).to(device)
        with torch.no_grad():
            layer.weight.copy_(numbers((2, 2), f32))
        torch.nn.utils.parametrize.register_parametrization(layer, "weight", torch.nn.ReLU(), unsafe=True)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            layer(numbers((3, 2), f32).to(device)).square().sum().backward()
            optimizer.step()
        results.append(layer.weight.detach().cpu())
    torch.testing.assert_close(*results)


# ---- donation


@passes_on_stock
def test_replaced_buffers_are_donated():
    x = numbers((64, 64), f32).to(DEVICE)
    torch_xla.sync()
    metrics.clear_all()
    x.mul_(2).add_(1)
    torch_xla.sync()
    assert metrics.metric_data("InputOutputAliasCount")[1] == 1


def python_functions(call):
    """The names of the functions in Python that a call calls."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in called if name != "<lambda>"]


IN_PYTHON_ON_STOCK = {
    "lerp_": lambda x, y: x.lerp_(y, 0.5),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y, value=0.5),
    "addmm_": lambda x, y: x.addmm_(y, y),
}
BY_INDEX_IN_PYTHON_ON_STOCK = ("index_copy_ rows", "index_add_ rows", "scatter_ rows", "scatter_ a number")
BY_INDEX_IN_PYTHON_ON_STOCK += ("scatter_add_ rows", "masked_fill_", "baddbmm_ of batches")


@fails_on_stock
@pytest.mark.parametrize("call", IN_PYTHON_ON_STOCK.values(), ids=IN_PYTHON_ON_STOCK)
def test_nothing_is_run_in_python(call):
    x, y = (numbers((3, 3), f32, at).to(DEVICE) for at in range(2))
    assert python_functions(lambda: call(x, y)) == []


@pytest.mark.default_pin
@fails_on_stock
@pytest.mark.parametrize("name", BY_INDEX_IN_PYTHON_ON_STOCK)
def test_writes_by_an_index_run_nothing_in_python(name):
    self, operator, operands, options = call_by_index(name, DEVICE)
    assert python_functions(lambda: getattr(self, operator)(*operands, **options)) == []


# ---- out=

#: Results of float32, of which one of int32 loses the fractions.
INTO = {
    "mul": lambda x, out: torch.mul(x, x, out=out),
    "a number": lambda x, out: torch.add(x, 1, out=out),
    "sqrt": lambda x, out: torch.sqrt(x, out=out),
    "floor": lambda x, out: torch.floor(x, out=out),
    "clamp": lambda x, out: torch.clamp(x, 0.5, 1.5, out=out),
    "addcmul": lambda x, out: torch.addcmul(x, x, x, out=out),
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "pow": lambda x, out: torch.pow(x, 2, out=out),
}


@fails_on_stock
@pytest.mark.parametrize("call", INTO.values(), ids=INTO.keys())
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=str)
def test_out_of_a_lower_category_is_refused(call, dtype):
    for device in ("cpu", DEVICE):
        x, out = torch.tensor([[1.5, 2.5], [0.5, 3.0]]).to(device), torch.zeros(2, 2, dtype=dtype, device=device)
        with pytest.raises(RuntimeError, match=r"can't be cast|Found dtype|Expected out tensor"):
            call(x, out)
        assert not out.any()


@fails_on_stock
def test_out_of_integers_for_a_quotient_and_of_bools_for_a_sum_is_refused():
    x = torch.arange(4, device=DEVICE)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        torch.div(x, 2, out=torch.empty_like(x))
    with pytest.raises(RuntimeError, match="result type Long can't be cast to the desired output type Bool"):
        torch.add(x, x, out=torch.empty_like(x, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        torch.mul(x, 0.5, out=torch.empty_like(x))


@passes_on_stock
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_out_of_the_same_category(dtype):
    x = torch.tensor([1.5, 2.5, 0.25])
    for call in (
        lambda x, out: torch.mul(x, 2, out=out),
        lambda x, out: torch.sqrt(x, out=out),
        lambda x, out: torch.add(x.long(), torch.tensor(2.5).to(x.device), alpha=1, out=out),
    ):
        found = call(x.to(DEVICE), torch.empty(3, dtype=dtype, device=DEVICE))
        assert found.dtype == dtype
        torch.testing.assert_close(found.cpu(), call(x, torch.empty(3, dtype=dtype)))
