"""Whatever uses a wide product next, the graph compiles and runs: patches/torch_xla/matmul-out-dtype.

XLA folds transposes, slices and more into a dot, after which XLA:CPU may have no kernel for it; that shows when
the graph runs. Here products of random forms meet random chains of consumers, without any flag of the user's.
The values are small integers, so that every step is exact and the same program in float64 says what is right.
"""

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch
from marks import fails_on_stock
from other_process import completed
from tensors import DEVICE, f32, s32

WIDE = {torch.bfloat16: f32, torch.float16: f32, torch.int8: s32}


# ---- operands: a view of contiguous data, which XLA may fold into the product


def plain(make, *sizes):
    return make(*sizes)


def transposed(make, *sizes):
    return make(*sizes[:-2], sizes[-1], sizes[-2]).transpose(-1, -2)


def sliced(make, *sizes):
    return make(*sizes[:-1], sizes[-1] + 2)[..., 1 : sizes[-1] + 1]


def strided(make, *sizes):
    return make(*sizes[:-2], 2 * sizes[-2], sizes[-1])[..., ::2, :]


def reversed_dims(make, *sizes):
    return make(*reversed(sizes)).permute(*reversed(range(len(sizes))))


def added(make, *sizes):
    return make(*sizes) + make(1, *sizes[1:])


OPERANDS = (plain, transposed, sliced, strided, reversed_dims, added)

# ---- products: of a batch of a x k and k x b matrices; `wide` is None for the program in float64


def wide_form(function, *operands, wide):
    """With out_dtype=, or out= where torch has no out_dtype= (before 2.8)."""
    if hasattr(getattr(torch.ops.aten, function.__name__), "dtype"):
        return function(*operands, out_dtype=wide)
    *_, lhs, rhs = operands
    return function(*operands, out=torch.empty(*lhs.shape[:-1], rhs.shape[-1], dtype=wide, device=DEVICE))


def mm(lhs, rhs, _, wide):
    return wide_form(torch.mm, lhs[0], rhs[0], wide=wide) if wide else lhs[0] @ rhs[0]


def bmm(lhs, rhs, _, wide):
    return wide_form(torch.bmm, lhs, rhs, wide=wide) if wide else lhs @ rhs


def addmm(lhs, rhs, addend, wide):
    return wide_form(torch.addmm, addend[0], lhs[0], rhs[0], wide=wide) if wide else addend[0] + lhs[0] @ rhs[0]


def baddbmm(lhs, rhs, addend, wide):
    return wide_form(torch.baddbmm, addend, lhs, rhs, wide=wide) if wide else addend + lhs @ rhs


def into_out(function):
    """The same with out=, for functions that allocate their result on stock."""

    def product(lhs, rhs, _, wide):
        if not wide:
            return function(lhs, rhs)
        shape = function(torch.empty_like(lhs, device="meta"), torch.empty_like(rhs, device="meta")).shape
        return function(lhs, rhs, out=torch.empty(shape, dtype=wide, device=DEVICE))

    product.__name__ = function.__name__
    return product


@into_out
def matmul_out(lhs, rhs, out=None):
    return torch.matmul(lhs, rhs, out=out)


@into_out
def mv_out(lhs, rhs, out=None):
    return torch.mv(lhs[0], rhs[0, :, 0], out=out)


@into_out
def linear_out(lhs, rhs, out=None):
    return torch.ops.aten.linear.out(lhs, rhs[0].t(), out=out) if out is not None else lhs @ rhs[0]


PRODUCTS = (mm, bmm, addmm, baddbmm, matmul_out, mv_out, linear_out)
BATCHED = (bmm, baddbmm, matmul_out)

# ---- consumers: of any tensor of one dimension or more, exact


def write_in_place(t):
    t = t.clone()
    t.transpose(0, -1)[:1] = 7
    return t


CONSUMERS = {
    "transpose": lambda t: t.transpose(0, -1),
    "last two": lambda t: t.transpose(-1, -2) if t.dim() > 1 else t,
    "all": lambda t: t.permute(*reversed(range(t.dim()))),
    "add": lambda t: t + 1,
    "double": lambda t: t + t,
    "with its transpose": lambda t: t.unsqueeze(0) + t.unsqueeze(0).transpose(0, -1),
    "rows": lambda t: t[1:],
    "columns": lambda t: t[..., ::2],
    "flip": lambda t: t.flip(-1),
    "flat": lambda t: t.reshape(-1),
    "sum": lambda t: t.sum(-1, keepdim=True, dtype=t.dtype),
    "max": lambda t: t.amax(0, keepdim=True) if t.shape[0] else t,
    "relu": lambda t: t.relu(),
    "cat": lambda t: torch.cat([t, t], -1),
    "expand": lambda t: t.unsqueeze(0).expand(2, *t.shape),
    "where": lambda t: torch.where(t > 0, t, -t),
    "in place": write_in_place,
    "contiguous": lambda t: t.clone(memory_format=torch.contiguous_format),
}


@dataclasses.dataclass
class Program:
    """One product and what becomes of it."""

    dtype: torch.dtype
    product: Callable
    extents: tuple[int, ...]
    operands: tuple[Callable, Callable]
    wide_addend: bool
    consumers: list[str]
    seed: int

    @classmethod
    def drawn_by(cls, draw):
        product = draw.choice(PRODUCTS)
        return cls(
            draw.choice((torch.bfloat16, torch.bfloat16, *WIDE)),
            product,
            (draw.choice((0, 1, 2, 3) if product in BATCHED else (1, 2)), *draw.choices((1, 5, 6, 8, 16), k=3)),
            tuple(draw.choices(OPERANDS, weights=(8, 1, 1, 1, 1, 1), k=2)),  # XLA folds most into plain ones
            draw.random() < 0.5,
            draw.choices(tuple(CONSUMERS), k=draw.randint(1, 4)),
            draw.getrandbits(30),
        )

    def __str__(self):
        operands = ", ".join(operand.__name__ for operand in self.operands)
        return f"{self.product.__name__} of {self.dtype} {self.extents} ({operands}) -> {' -> '.join(self.consumers)}"

    def run(self, make, convert, wide):
        batch, a, k, b = self.extents
        lhs, rhs = self.operands[0](make, batch, a, k), self.operands[1](make, batch, k, b)
        addend = make(batch, a, b)
        result = self.product(lhs, rhs, convert(addend) if self.wide_addend else addend, wide)
        for consumer in self.consumers:
            result = CONSUMERS[consumer](result)
        return result

    def problem(self):
        """What is wrong with it on XLA; None if nothing is."""
        generator = torch.Generator().manual_seed(self.seed)
        data, wide = [], WIDE[self.dtype]

        def make(*shape):
            data.append(torch.randint(-3, 4, shape, generator=generator).to(self.dtype))
            return data[-1].double()

        exact = self.run(make, lambda t: t, None)
        on_device = iter([t.to(DEVICE) for t in data])
        try:
            actual = self.run(lambda *shape: next(on_device), lambda t: t.to(wide), wide)
            torch.testing.assert_close(actual.cpu(), exact.to(wide), rtol=0, atol=0)
        except (RuntimeError, AssertionError) as error:
            return f"{self}: {error}"
        return None


@fails_on_stock
@pytest.mark.ends_the_process_on_stock("2.6")
def test_every_consumer_of_every_product_runs():
    draw = random.Random(0)
    problems = list(filter(None, (Program.drawn_by(draw).problem() for _ in range(200))))
    assert not problems, f"{len(problems)} of 200: " + "\n".join(problems)


@pytest.mark.since("2.8", "out_dtype= of matrix products")
@fails_on_stock
def test_the_programs_of_the_report():
    x, y = (torch.randn(s, dtype=torch.bfloat16).to(DEVICE) for s in ((6, 8), (8, 5)))
    expected = (x.cpu().float() @ y.cpu().float()).t()
    torch.testing.assert_close((torch.mm(x, y, out_dtype=f32).t() + 1).cpu(), expected + 1)
    o = torch.empty(6, 5, device=DEVICE)
    torch.mm(x, y, out=o)
    o.t()[0] = 7
    expected = expected.clone()
    expected[0] = 7
    torch.testing.assert_close(o.cpu(), expected.t())
    torch.testing.assert_close(
        torch.mm(x, y, out_dtype=f32).t().softmax(0).cpu(), (x.cpu().float() @ y.cpu().float()).t().softmax(0)
    )


def flags(device, **environment):
    """XLA_FLAGS after the import."""
    program = "import os; import torch_xla; print(os.environ['XLA_FLAGS'])"
    return completed("-c", program, PJRT_DEVICE=device, **environment).stdout.split()


@fails_on_stock
@pytest.mark.since("2.7", "XNNPACK")
@pytest.mark.parametrize("own", ["", "--xla_cpu_enable_fast_min_max=false"])
@pytest.mark.default_pin
@pytest.mark.slow
def test_the_import_sets_the_flag_beside_the_users_own(own):
    assert {"--xla_cpu_use_xnnpack=false", *own.split()} <= set(flags("CPU", XLA_FLAGS=own))


@pytest.mark.passes_on_stock
@pytest.mark.since("2.7", "XNNPACK")
@pytest.mark.default_pin
@pytest.mark.slow
def test_the_users_flag_stands():
    assert [f for f in flags("CPU", XLA_FLAGS="--xla_cpu_use_xnnpack=true") if "xnnpack" in f] == [
        "--xla_cpu_use_xnnpack=true"
    ]


@pytest.mark.passes_on_stock
@pytest.mark.default_pin
@pytest.mark.slow
def test_other_devices_and_a_disabled_topic_have_no_flag():
    assert "xnnpack" not in " ".join(flags("TPU", XLA_FLAGS=""))
    assert "xnnpack" not in " ".join(flags("CPU", XLA_FLAGS="", CASTOFF_DISABLE="matmul-out-dtype"))
