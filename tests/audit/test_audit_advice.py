"""Every advice of an audit: taken, it removes the casts that it is given for."""

import contextlib

import pytest
import torch
import torch_xla
from torch import nn

from castoff.audit import audit
from castoff.audit.casts import REMEDIES

BF16, F32 = torch.bfloat16, torch.float32
PATCHED = hasattr(torch.Tensor, "grad_dtype")


def on_xla(*shape, dtype=BF16, requires_grad=False):
    tensor = torch.ones(*shape, dtype=dtype).to("xla").requires_grad_(requires_grad)
    torch_xla.sync()
    return tensor


def native_mul(taken):
    if not taken:
        return contextlib.nullcontext()
    from torch_xla.experimental import native_mul_context

    return native_mul_context()


def wide_grads(model, taken):
    if taken:
        from torch_xla.amp import wide_grads

        wide_grads(model.bfloat16())
    return model


class Widening(torch.autograd.Function):
    """The identity, whose backward returns a float32 gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad.float().sin()


class Declared(torch.autograd.Function):
    """A function that may say which dtype its gradient has."""

    @staticmethod
    def forward(ctx, x, dtype):
        if dtype is not None:
            ctx.set_output_grad_dtype(dtype)
        return x.bfloat16()

    @staticmethod
    def backward(ctx, grad):
        return grad.float(), None


def products(taken):
    x = on_xla(4, 8)

    def step():
        with native_mul(taken):
            return x * x.sin()

    return step


def clipping(taken):
    linear, x = nn.Linear(8, 8).to("xla", BF16), on_xla(4, 8)

    def step():
        with native_mul(taken):
            linear(x).sum().backward()
            torch.nn.utils.clip_grad_norm_(linear.parameters(), 1.0)
            return [parameter.grad for parameter in linear.parameters()]

    return step


def autocast_weights(module, *shape):
    def made(taken):
        model, x = wide_grads(module().to("xla"), taken), on_xla(*shape, dtype=F32)

        def step():
            with torch.autocast("xla", dtype=BF16):
                loss = model(x).sin().sum()
            loss.backward()
            return loss, [parameter.grad for parameter in model.parameters()]

        return step

    return made


def float32_copies(taken):
    linear, x = wide_grads(nn.Linear(8, 8, bias=False).to("xla", BF16), taken), on_xla(4, 8)

    def step():
        linear.zero_grad()
        linear(x).sum().backward()
        return [parameter.grad.float() for parameter in linear.parameters()]

    return step


def out_dtype(name, shapes):
    def made(taken):
        given, wide = [on_xla(*shape) for shape in shapes], {"out_dtype": F32} if taken else {}
        return lambda: getattr(torch, name)(*given, **wide).float().sin()

    return made


def out_dtype_op(op, function, *shapes):
    def made(taken):
        given = [on_xla(*shape) for shape in shapes]
        if taken:
            return lambda: torch.ops.higher_order.out_dtype(op, F32, *given)
        return lambda: function(*given).float()

    return made


def a_leaf(taken):
    leaf = on_xla(4, 8, requires_grad=True)
    if taken:
        leaf.grad_dtype = F32

    def step():
        Widening.apply(leaf).backward(torch.ones(4, 8, device="xla", dtype=BF16))
        return leaf.grad

    return step


def a_function(taken):
    leaf = on_xla(4, 8, dtype=F32, requires_grad=True)

    def step():
        Widening.apply(Declared.apply(leaf, F32 if taken else None)).sum().backward()
        return leaf.grad

    return step


def a_root(taken):
    leaf = on_xla(4, 8, requires_grad=True)

    def step():
        leaf.exp().backward(torch.ones(4, 8, device="xla", dtype=BF16 if taken else F32).sin())
        return leaf.grad

    return step


def conv(*given):
    return nn.functional.conv2d(*given)


def conv_op(*given):
    ones, zeros = [1, 1], [0, 0]
    return torch.ops.higher_order.out_dtype(
        torch.ops.aten.convolution.default, F32, *given, None, ones, zeros, ones, False, zeros, 1
    )


def convolutions(taken):
    given = on_xla(1, 2, 4, 4), on_xla(2, 2, 1, 1)
    return (lambda: conv_op(*given)) if taken else (lambda: conv(*given).float())


NATIVE = "XLA_NATIVE_MUL=1"
SWITCH = "wide_grads(model), with weights in the narrow dtype"
DECLARE = "Tensor.grad_dtype of the leaf, or ctx.set_output_grad_dtype"
ADVICE = {
    "a product": (NATIVE, products),
    "gradient clipping": (NATIVE, clipping),
    "weights of Linear under autocast, in the backward": (
        SWITCH,
        autocast_weights(lambda: nn.Linear(8, 8, bias=False), 4, 8),
    ),
    "weights of a convolution under autocast, in the backward": (
        SWITCH,
        autocast_weights(lambda: nn.Conv2d(2, 2, 1, bias=False), 1, 2, 4, 4),
    ),
    "weights of Linear under autocast": (
        "weights in bfloat16 with wide_grads(model)",
        autocast_weights(lambda: nn.Linear(8, 8, bias=False), 4, 8),
    ),
    "float32 copies of gradients": ("wide_grads(model): the gradient is float32 already", float32_copies),
    "mm": ("out_dtype=torch.float32", out_dtype("mm", [(8, 8), (8, 8)])),
    "bmm": ("out_dtype=torch.float32", out_dtype("bmm", [(2, 8, 8), (2, 8, 8)])),
    "linear": (
        "torch.ops.higher_order.out_dtype",
        out_dtype_op(torch.ops.aten.linear.default, nn.functional.linear, (4, 8), (8, 8)),
    ),
    "a convolution": ("torch.ops.higher_order.out_dtype", convolutions),
    "a gradient of a leaf": (DECLARE, a_leaf),
    "a gradient of a Function": (DECLARE, a_function),
}

WHEELS = {
    "a round trip through views": lambda x, out: x.float().t()[1:].flip(0).bfloat16().sin(),
    "a product with a wider result": lambda x, out: torch.mm(x, x, out=out),
}
"""What castoff's wheels remove without being asked."""


def audited(make, taken):
    return audit(make(taken), calls=2).floating


ROOT = ("pass a gradient of the root's dtype", a_root)
"""What needs none of castoff's wheels."""


@pytest.mark.passes_on_stock
def test_a_gradient_of_the_roots_dtype_is_not_converted():
    test_advice_that_is_taken_removes_the_casts("the root of a backward")


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("name", ADVICE)
def test_advice_that_is_taken_removes_the_casts(name):
    text, make = {**ADVICE, "the root of a backward": ROOT}[name]
    before, after = audited(make, taken=False), audited(make, taken=True)
    advised = [cast for cast in before if cast.remedy.startswith(text)]
    assert advised, [(cast.phase, cast.op, cast.remedy) for cast in before]
    assert not [cast for cast in after if cast.remedy.startswith(text)]
    left = [(cast.phase, cast.op, cast.source, cast.target, cast.remedy) for cast in after]
    assert len(after) <= len(before) - len(advised), left


@pytest.mark.passes_on_stock
@pytest.mark.parametrize("name", WHEELS)
def test_what_the_wheels_remove(name):
    report = audit(WHEELS[name], on_xla(8, 8), on_xla(8, 8, dtype=F32))
    advised = [cast for cast in report.floating if cast.remedy.startswith("castoff's wheels")]
    assert bool(advised) is not PATCHED


@pytest.mark.passes_on_stock
def test_every_advice_is_tested():
    tested = [text for text, _ in (ROOT, *ADVICE.values())] + ["castoff's wheels"]
    given = [text for _, topic, text in REMEDIES if topic is not None or text.startswith("pass")]
    assert [text for text in given if not text.startswith(tuple(tested))] == []


@pytest.mark.passes_on_stock
class TestNoAdvice:
    """Where none of these would remove the cast."""

    @staticmethod
    def topics(step):
        return {cast.topic for cast in audit(step).floating}

    def test_a_round_trip_through_an_index(self):
        x, index = on_xla(4, 8), torch.tensor([1, 0]).to("xla")
        assert self.topics(lambda: x.float()[index].bfloat16().sin()) == {None}

    def test_the_derivative_of_a_cast_of_an_input(self):
        x, w = on_xla(4, 8, dtype=F32, requires_grad=True), on_xla(8, 8)

        def step():
            (x.bfloat16() @ w).sum().backward()
            return x.grad

        assert self.topics(step) == {None}

    def test_products_without_an_out_dtype(self):
        x = on_xla(2, 8, 8)
        assert self.topics(lambda: torch.einsum("bij,bjk->bik", x, x).float()) == {None}

    def test_a_gradient_for_an_operation_of_torch(self):
        x = on_xla(4, 8, requires_grad=True)

        def step():
            Widening.apply(x.exp()).backward(torch.ones(4, 8, device="xla", dtype=BF16))
            return x.grad

        assert {cast.topic for cast in audit(step).floating if cast.why == "autograd engine"} == {None}

    @pytest.mark.fails_on_stock
    def test_a_gradient_that_a_grad_dtype_widens(self):
        x = on_xla(4, 8, requires_grad=True)
        x.grad_dtype = F32

        def step():
            x.erf().sum().backward()  # whose gradient is rounded
            return x.grad

        casts = [cast for cast in audit(step).floating if cast.why == "autograd engine"]
        assert [cast.topic for cast in casts] == [None]
        assert "grad_dtype of the leaf asks for it" in casts[0].remedy
