"""Random programs of mixed dtypes on XLA: what a tensor declares is what it holds, and is as accurate as it says.

For every tensor of a program, its dtype is the one that torch's rules give, its IR node's and its HLO
result's, and its values lie within the bound that the dtypes declared on the way imply (`Value.bound`: each
operation is rounded at most once to the dtype of its result, each product accumulates in at least that dtype).

A step of a program is a function under ``@step``, which takes the pool and numbers that pick operands from it;
a new feature is one more such function. The tests run in a process of their own, as they need another cache of
compiled graphs: see Pool.
"""

import dataclasses
import os
import re

import pytest
import torch
import torch_xla
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from other_process import run_tests
from tensors import DEVICE, bf16, f16, f32, f64

INSIDE = "CASTOFF_PROPERTIES" in os.environ
SIZE = 4  # every tensor is SIZE x SIZE
DTYPES = (bf16, f16, f32, f64)
NAMES = {"bf16": bf16, "f16": f16, "f32": f32, "f64": f64}
WIDENED = {bf16: f32, f16: f32}  # what out_dtype= and out= of matrix products accept

inside = pytest.mark.skipif(not INSIDE, reason="runs in a process of its own, below")
picks = st.integers(0, 7)
dtypes = st.sampled_from(DTYPES)


# ---- values and their bounds


@dataclasses.dataclass
class Value:
    """A tensor on XLA, what it would be without any rounding, and how far it may be from that.

    The latter two are float64 on the CPU, and alias each other as the tensors on XLA do.
    """

    tensor: torch.Tensor
    exact: torch.Tensor
    bound: torch.Tensor
    dtype: torch.dtype

    def alias(self, view):
        """The same view of all three."""
        return Value(view(self.tensor), view(self.exact), view(self.bound), self.dtype)

    @property
    def magnitude(self):
        return self.exact.abs() + self.bound


def is_exact(source, target):
    """Whether every number of dtype ``source`` is one of ``target``."""
    return torch.promote_types(source, target) == target


def rounded(exact, bound, dtype):
    """``bound`` after one rounding to ``dtype``, which flushes what is below its normal numbers; None: overflow."""
    info = torch.finfo(dtype)
    magnitude = exact.abs() + bound
    if (magnitude * (1 + info.eps) > info.max).any():
        return None
    return bound + info.eps / 2 * magnitude + info.smallest_normal


def converted(value, dtype):
    return value.bound.clone() if is_exact(value.dtype, dtype) else rounded(value.exact, value.bound, dtype)


class Pool:
    """The tensors of a program so far; the first ones are device data."""

    def __init__(self, dtypes, numbers):
        self.values = []
        for index, dtype in enumerate(dtypes):
            # eighths up to 1: of every dtype
            exact = torch.tensor([(n * (index + 1)) % 17 - 8 for n in numbers], dtype=f64).reshape(SIZE, SIZE) / 8
            self.values.append(Value(exact.to(dtype).to(DEVICE), exact, torch.zeros_like(exact), dtype))
        torch_xla.sync()

    def __getitem__(self, pick):
        return self.values[pick % len(self.values)]

    def add(self, tensor, exact, bound, dtype):
        self.values.append(Value(tensor, exact, bound, dtype))


STEPS = []


def step(*strategies):
    """A step of programs: it gets the pool and one value of each strategy.

    Steps that would overflow do nothing, so that any list of steps is a program and shrinks as lists do.
    """

    def register(function):
        STEPS.append(st.tuples(st.just(function), *strategies))
        return function

    return register


# ---- element-wise


def _where(a, b):
    return torch.where(torch.eye(SIZE, device=a.device, dtype=torch.bool), a, b)


def sum_bound(a, b, bound_a, bound_b):
    return bound_a + bound_b


def product_bound(a, b, bound_a, bound_b):
    return a.abs() * bound_b + b.abs() * bound_a + bound_a * bound_b


def choice_bound(a, b, bound_a, bound_b):
    return torch.maximum(*torch.broadcast_tensors(bound_a, bound_b))


#: Each operation and how far its result is from the exact one, for operands that are off by so much.
ELEMENTWISE = {
    torch.add: sum_bound,
    torch.sub: sum_bound,
    torch.mul: product_bound,
    torch.maximum: choice_bound,
    torch.minimum: choice_bound,
    _where: choice_bound,
}
IN_PLACE = {torch.add: "add_", torch.sub: "sub_", torch.mul: "mul_"}
operations = st.sampled_from(list(ELEMENTWISE))


def combined(operation, a, b, dtype):
    """The exact result of an operation in ``dtype`` and its bound, which is None if it overflows."""
    operands = [converted(value, dtype) for value in (a, b)]
    if any(bound is None for bound in operands):
        return None, None
    exact = operation(a.exact, b.exact)
    return exact, rounded(exact, ELEMENTWISE[operation](a.exact, b.exact, *operands), dtype)


@step(operations, picks, picks)
def elementwise(pool, operation, i, j):
    a, b = pool[i], pool[j]
    dtype = torch.promote_types(a.dtype, b.dtype)
    exact, bound = combined(operation, a, b, dtype)
    if bound is not None:
        pool.add(operation(a.tensor, b.tensor), exact, bound, dtype)


@step(operations, picks, picks)
def elementwise_with_zero_dimensions(pool, operation, i, j):
    a, b = pool[i], pool[j].alias(lambda t: t[0, 0])
    exact, bound = combined(operation, a, b, a.dtype)
    if bound is not None:
        pool.add(operation(a.tensor, b.tensor), exact, bound, a.dtype)


@step(st.sampled_from(list(IN_PLACE)), picks, picks)
def elementwise_in_place(pool, operation, i, j):
    a, b = pool[i], pool[j]
    exact, bound = combined(operation, a, b, torch.promote_types(a.dtype, b.dtype))
    bound = None if bound is None else rounded(exact, bound, a.dtype)
    if bound is not None:
        getattr(a.tensor, IN_PLACE[operation])(b.tensor)
        a.exact.copy_(exact)
        a.bound.copy_(bound)


@step(st.sampled_from([torch.add, torch.sub, torch.mul]), picks, picks, dtypes)
def elementwise_out(pool, operation, i, j, dtype):
    a, b = pool[i], pool[j]
    exact, bound = combined(operation, a, b, torch.promote_types(a.dtype, b.dtype))
    bound = None if bound is None else rounded(exact, bound, dtype)
    if bound is not None:
        out = torch.zeros(SIZE, SIZE, dtype=dtype, device=DEVICE)
        operation(a.tensor, b.tensor, out=out)
        pool.add(out, exact, bound, dtype)


@step(picks, picks)
def concatenation(pool, i, j):
    a, b = pool[i].alias(lambda t: t[:2]), pool[j].alias(lambda t: t[2:])
    dtype = torch.promote_types(a.dtype, b.dtype)
    exact, bounds = torch.cat([a.exact, b.exact]), [converted(a, dtype), converted(b, dtype)]
    if all(bound is not None for bound in bounds):
        pool.add(torch.cat([a.tensor, b.tensor]), exact, torch.cat(bounds), dtype)


# ---- casts and copies


CASTS = {
    "to": lambda t, dtype: t.to(dtype),
    "to copy": lambda t, dtype: t.to(dtype, copy=True),
    "type_as": lambda t, dtype: t.type_as(torch.zeros(1, dtype=dtype, device=DEVICE)),
    "copy_": lambda t, dtype: torch.zeros(SIZE, SIZE, dtype=dtype, device=DEVICE).copy_(t),
    "and back": lambda t, dtype: t.to(f64).t().to(dtype).t(),
}


@step(st.sampled_from(list(CASTS)), picks, dtypes)
def cast(pool, how, i, dtype):
    source = pool[i]
    bound = converted(source, dtype)
    if bound is None:
        return
    result = CASTS[how](source.tensor, dtype)
    if result is source.tensor:
        pool.values.append(source)
    else:
        pool.add(result, source.exact.clone(), bound, dtype)


REGIONS = {
    "whole": lambda t: t,
    "rows": lambda t: t[1:3],
    "column": lambda t: t.select(1, 2),
    "diagonal": lambda t: t.diagonal(),
    "transposed": lambda t: t.t(),
}
regions = st.sampled_from(list(REGIONS))


@step(regions, picks, picks)
def copy_into(pool, region, i, j):
    target, source = pool[i].alias(REGIONS[region]), pool[j].alias(REGIONS[region])
    bound = converted(source, target.dtype)
    if bound is not None:
        target.tensor.copy_(source.tensor)
        target.bound.copy_(bound)
        target.exact.copy_(source.exact.clone())


# ---- views

VIEWS = {
    "t": lambda t: t.t(),
    "permute": lambda t: t.permute(1, 0),
    "view": lambda t: t.view(2, 2, SIZE).view(SIZE, SIZE),
    "unsqueeze and squeeze": lambda t: t.unsqueeze(1).squeeze(1),
}


@step(st.sampled_from(list(VIEWS)), picks)
def view(pool, which, i):
    if which != "view" or pool[i].exact.is_contiguous():
        pool.values.append(pool[i].alias(VIEWS[which]))


@step(picks, picks)
def expanded_row(pool, i, j):
    """A row for all rows, and a new tensor from it."""
    a, row = pool[i], pool[j].alias(lambda t: t[1:2].expand(SIZE, SIZE))
    dtype = torch.promote_types(a.dtype, row.dtype)
    exact, bound = combined(torch.sub, a, row, dtype)
    if bound is not None:
        pool.add(a.tensor - row.tensor, exact, bound, dtype)


# ---- matrix products


def matrix_product(a, b, bound_b, dtype):
    """The exact product and the bound for one that rounds and adds its terms in ``dtype``."""
    unit = torch.finfo(dtype).eps / 2
    exact = a.exact @ b.exact
    magnitude = a.magnitude @ (b.exact.abs() + bound_b)
    terms = SIZE + 1  # a product and its sums, and the result's own rounding
    lost = terms * unit / (1 - terms * unit) * magnitude + SIZE * torch.finfo(dtype).smallest_normal
    bound = magnitude - a.exact.abs() @ b.exact.abs() + lost
    return exact, None if (exact.abs() + bound > torch.finfo(dtype).max).any() else bound


def _into_out(a, b, dtype):
    return torch.mm(a, b, out=torch.zeros(SIZE, SIZE, dtype=dtype, device=DEVICE))


def _batched(a, b, dtype):
    return torch.bmm(a[None], b[None])[0]


#: The forms of a product, and whether they may have a dtype of their own.
PRODUCTS = {
    "mm": (lambda a, b, dtype: torch.mm(a, b), False),
    "matmul": (lambda a, b, dtype: torch.matmul(a, b), False),
    "linear": (lambda a, b, dtype: torch.nn.functional.linear(a, b.t()), False),
    "bmm": (_batched, False),
    "out_dtype": (lambda a, b, dtype: torch.mm(a, b, out_dtype=dtype), True),
    "bmm out_dtype": (lambda a, b, dtype: torch.bmm(a[None], b[None], out_dtype=dtype)[0], True),
    "out": (_into_out, True),
}
if not hasattr(torch.ops.aten.mm, "dtype"):  # before torch 2.8
    del PRODUCTS["out_dtype"], PRODUCTS["bmm out_dtype"]


@step(st.sampled_from(list(PRODUCTS)), picks, picks)
def product(pool, form, i, j):
    a, b = pool[i], pool[j]
    multiply, may_widen = PRODUCTS[form]
    dtype = WIDENED.get(a.dtype, a.dtype) if may_widen else a.dtype
    bound_b = converted(b, a.dtype)
    if bound_b is None:
        return
    exact, bound = matrix_product(a, b, bound_b, dtype)
    if bound is not None:
        pool.add(multiply(a.tensor, b.tensor.to(a.dtype), dtype), exact, bound, dtype)


@step(picks, picks, picks, picks)
def product_into_the_buffer(pool, i, j, k, rows):
    """``torch.mm(a, b, out=c)``: c is a tensor of the program, wider than the operands or of their dtype."""
    a, b, c = pool[i], pool[j], pool[k]
    if c.dtype not in (a.dtype, WIDENED.get(a.dtype)):
        return
    bound_b = converted(b, a.dtype)
    if bound_b is None:
        return
    exact, bound = matrix_product(a, b, bound_b, c.dtype)
    if bound is not None:
        torch.mm(a.tensor, b.tensor.to(a.dtype), out=c.tensor)
        c.exact.copy_(exact)
        c.bound.copy_(bound)


# ---- the properties


def ir_dtype(tensor):
    text = torch_xla._XLAC._get_xla_tensors_text([tensor])
    (root,) = (line for line in text.splitlines() if re.search(r"\bROOT=0", line))
    return NAMES[re.search(r" = \(?(\w+)\[", root)[1]]


def hlo_dtype(tensor):
    text = torch_xla._XLAC._get_xla_tensors_hlo([tensor])
    entry = text[text.index("ENTRY") :]
    return NAMES[re.search(r"ROOT [^=]+ = \((\w+)\[", entry)[1]]


def check(pool):
    """What a tensor declares, its IR and its HLO agree with torch's rules, and so do its values with the bound."""
    for value in pool.values:
        declared = value.tensor.dtype, ir_dtype(value.tensor), hlo_dtype(value.tensor)
        assert declared == (value.dtype,) * 3, "declared, IR, HLO"
    torch_xla._XLAC._xla_sync_multi([value.tensor for value in pool.values], [], wait=True, sync_xla_data=False)
    for value in pool.values:
        error = (value.tensor.cpu().double() - value.exact).abs()
        assert (error <= value.bound).all(), (value.dtype, (error - value.bound).max())


def run(pool, program):
    for function, *arguments in program:
        function(pool, *arguments)
    check(pool)


@inside
@settings(
    derandomize=True,
    max_examples=int(os.environ.get("CASTOFF_EXAMPLES", "60")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(dtypes, min_size=2, max_size=4),
    st.lists(st.integers(0, 16), min_size=SIZE * SIZE, max_size=SIZE * SIZE),
    st.lists(st.one_of(STEPS), min_size=1, max_size=12),
)
def test_random_programs(dtypes, numbers, program):
    run(Pool(dtypes, numbers), program)


NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
#: Programs that stock declares, compiles or computes wrongly: proof that the properties are looked at.
SMALLEST = {
    "accuracy": ((bf16, bf16, f32), [(product_into_the_buffer, 0, 1, 2, 0)]),
    "declared": ((bf16, f32), [(elementwise_with_zero_dimensions, torch.add, 0, 1)]),
    "declared after a cast": ((bf16, f32), [(elementwise_with_zero_dimensions, torch.sub, 0, 1), (cast, "to", 2, f32)]),
    "lowered": ((bf16, f32), [(elementwise, _where, 0, 1)]),
    "not implemented": ((f16, f16), [(product, "out_dtype" if "out_dtype" in PRODUCTS else "out", 0, 1)]),
}


@inside
@pytest.mark.fails_on_stock
@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_programs(name):
    dtypes, program = SMALLEST[name]
    run(Pool(dtypes, NUMBERS), program)


@inside
def test_bounds_are_not_loose():
    """A value that is rounded once more than it declares is out of bounds."""
    pool = Pool((f32, f32), NUMBERS)
    product(pool, "mm", 0, 1)
    elementwise(pool, torch.mul, 2, 2)
    check(pool)
    pool.values[-1].tensor = pool.values[-1].tensor.bfloat16().float()
    with pytest.raises(AssertionError, match=r"torch\.float32"):
        check(pool)


@pytest.mark.skipif(INSIDE, reason="this is what it runs")
@pytest.mark.slow
def test_in_a_process_of_its_own():
    run_tests(__file__, CASTOFF_PROPERTIES="1")
