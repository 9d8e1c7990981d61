"""``torch_xla.amp.autocast`` on CPU-XLA: patches/torch_xla/amp-on-cpu."""

import warnings

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from ir_text import ir
from marks import fails_on_stock
from tensors import DEVICE, bf16, f16, f32
from torch_xla.amp import autocast


def data(*shape, dtype=f32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def as_on_tpu(monkeypatch):
    """torch_xla's own path for the TPU, which needs no TPU: all it asks is what the hardware is called."""
    monkeypatch.setattr(torch_xla.core.xla_model, "xla_device_hw", lambda device: "TPU")
    return autocast(DEVICE)


S = (4, 5)
# By torch_xla's lists: computed in bfloat16, in float32, or in the widest dtype of the operands.
OPERATIONS = {
    "mm": (torch.mm, (4, 5), (5, 3)),
    "bmm": (torch.bmm, (2, 4, 5), (2, 5, 3)),
    "addmm": (torch.addmm, (4, 3), (4, 5), (5, 3)),
    "addmv": (torch.addmv, (4,), (4, 5), (5,)),
    "baddbmm": (torch.baddbmm, (2, 4, 3), (2, 4, 5), (2, 5, 3)),
    "matmul": (torch.matmul, (2, 4, 5), (5, 3)),
    "linear": (F.linear, (4, 5), (3, 5), (3,)),
    "conv1d": (F.conv1d, (2, 3, 8), (4, 3, 3), (4,)),
    "conv2d": (F.conv2d, (2, 3, 6, 6), (4, 3, 3, 3)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 3, 6, 6), (3, 4, 3, 3)),
    "prelu": (F.prelu, S, (5,)),
    "attention": (F.scaled_dot_product_attention, *[(2, 2, 4, 8)] * 3),
    "softmax": (lambda a: torch.softmax(a, 1), S),
    "log_softmax": (lambda a: torch.log_softmax(a, 1), S),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (5,), w, b), S, (5,), (5,)),
    "gelu": (F.gelu, S),
    "exp": (torch.exp, S),
    "pow": (lambda a: torch.pow(a, 2.0), S),
    "sum": (torch.sum, S),
    "norm": (torch.linalg.vector_norm, S),
    "mse_loss": (F.mse_loss, S, S),
    "cross_entropy": (lambda a: F.cross_entropy(a, torch.tensor([0, 1, 2, 3]).to(DEVICE)), S),
    "add": (torch.add, S, S),
    "cat": (lambda a, b: torch.cat([a, b]), S, S),
    "stack": (lambda a, b: torch.stack([a, b]), S, S),
    "index_put": (lambda a, b: a.index_put((torch.tensor([0, 2]).to(DEVICE),), b), S, (2, 5)),
}


# With a first operand in bfloat16: not those that autocast leaves alone and that torch then refuses.
MIXED = [name for name in OPERATIONS if name not in ("attention", "index_put", "layer_norm")]
CASES = [(name, False) for name in OPERATIONS] + [(name, True) for name in MIXED]


@fails_on_stock
@pytest.mark.parametrize(("name", "mixed"), CASES)
def test_operators_are_cast_as_on_tpu_and_as_by_torch_autocast(name, mixed, monkeypatch):
    function, *shapes = OPERATIONS[name]
    operands = [data(*s, dtype=bf16 if mixed and i == 0 else f32, seed=i) for i, s in enumerate(shapes)]

    def under(context):
        with context:
            result = function(*operands)
        return result.dtype, ir(result)

    here = under(autocast(DEVICE))
    assert here == under(torch.autocast("xla", dtype=bf16))
    with monkeypatch.context() as patch:
        assert here == under(as_on_tpu(patch))


@fails_on_stock
def test_linear():
    x, w, b = data(4, 5), data(3, 5, seed=1), data(3, seed=2)
    with autocast(DEVICE):
        y = F.linear(x, w, b)
    assert y.dtype is bf16
    ir(y).expect("""\
%0 = f32[3] xla::device_data()
%1 = bf16[3] xla::cast(%0)
%2 = f32[3,5] xla::device_data()
%3 = bf16[3,5] xla::cast(%2)
%4 = bf16[5,3] aten::permute(%3)
%5 = f32[4,5] xla::device_data()
%6 = bf16[4,5] xla::cast(%5)
%7 = bf16[4,3] aten::addmm(%6, %4, %1)
return %7
""")
    expected = F.linear(*(t.cpu().bfloat16().double() for t in (x, w, b)))
    magnitude = F.linear(*(t.cpu().double().abs() for t in (x, w, b)))
    # one rounding of the product, one of the sum
    assert ((y.cpu().double() - expected).abs() <= 2 * 2.0**-8 * magnitude).all()


@fails_on_stock
def test_a_step_is_the_one_of_torch_autocast():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5)).to(DEVICE)
    x, target = data(4, 5), data(4, 5, seed=1)
    torch_xla.sync()

    def step(context):
        with context:
            loss = F.mse_loss(model(x), target)
        return loss, torch.autograd.grad(loss, list(model.parameters()))

    loss, grads = step(autocast(DEVICE))
    expected_loss, expected_grads = step(torch.autocast("xla", dtype=bf16))
    assert {g.dtype for g in grads} == {f32}
    assert ir(loss, *grads) == ir(expected_loss, *expected_grads)
    assert "bf16" in ir(loss)


@fails_on_stock
def test_is_the_same_as_a_decorator_and_when_entered_again():
    x, w = data(4, 5), data(3, 5, seed=1)
    context = autocast(DEVICE)
    assert context(F.linear)(x, w).dtype is bf16
    for _ in range(2):
        with context:
            assert F.linear(x, w).dtype is bf16
        assert F.linear(x, w).dtype is f32


@pytest.mark.since("2.6", "torch.is_autocast_enabled(device_type)")
@fails_on_stock
def test_enabled_and_nesting():
    x, w = data(4, 5), data(3, 5, seed=1)
    with autocast(DEVICE, enabled=False):
        assert F.linear(x, w).dtype is f32
    with autocast(DEVICE):
        with autocast(DEVICE, enabled=False):
            assert F.linear(x, w).dtype is f32
            with autocast(DEVICE):
                assert F.linear(x, w).dtype is bf16
        assert F.linear(x, w).dtype is bf16
    assert not torch.is_autocast_enabled("xla")


@pytest.mark.since("2.6", "torch.get_autocast_dtype")
@fails_on_stock
def test_state_is_put_back_after_an_exception():
    before = torch.get_autocast_dtype("xla"), torch.is_autocast_cache_enabled()
    with pytest.raises(KeyError), autocast(DEVICE, cache_enabled=False):
        raise KeyError
    assert not torch.is_autocast_enabled("xla")
    assert (torch.get_autocast_dtype("xla"), torch.is_autocast_cache_enabled()) == before


@fails_on_stock
@pytest.mark.parametrize(("cache_enabled", "casts"), ((True, 1), (False, 2)))
def test_cache_enabled(cache_enabled, casts):
    x, w = data(4, 5, dtype=bf16), data(5, 5, seed=1).requires_grad_()
    with autocast(DEVICE, cache_enabled=cache_enabled):
        y = F.linear(F.linear(x, w), w)
    assert ir(y).count("xla::cast") == casts


@fails_on_stock
@pytest.mark.parametrize("dtype", (bf16, f16, f32))
def test_dtype_as_on_tpu(dtype, monkeypatch):
    x, w = data(4, 5), data(3, 5, seed=1)

    def result():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            context = autocast(DEVICE, dtype=dtype)
        with context:
            y = F.linear(x, w)
        return y.dtype, [str(w.message) for w in caught]

    here = result()
    assert here[0] is (bf16 if dtype is bf16 else f32)
    assert bool(here[1]) == (dtype is not bf16)
    monkeypatch.setattr(torch_xla.core.xla_model, "xla_device_hw", lambda device: "TPU")
    assert result() == here


@pytest.mark.passes_on_stock
def test_other_devices_are_refused_as_before():
    with pytest.raises(AssertionError, match="XLA:TPU"):
        autocast(torch.device("cpu"))
