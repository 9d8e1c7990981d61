"""torch.utils.checkpoint on XLA tensors: patches/torch_xla/checkpoint-on-xla.

Tests marked ``fails_on_stock`` state what the topic is for, those marked ``passes_on_stock`` what it leaves alone.
"""

import importlib

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.utils.checkpoint
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked
from tensors import DEVICE, bf16, f32
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

dropout = torch.nn.functional.dropout


def reentrant(function, *args, **options):
    return checkpoint(function, *args, use_reentrant=True, **options)


def non_reentrant(function, *args, **options):
    return checkpoint(function, *args, use_reentrant=False, **options)


def of_torch_xla(function, *args, **options):
    return torch_xla.utils.checkpoint.checkpoint(function, *args, **options)


torchs_two = pytest.mark.parametrize("kind", [reentrant, non_reentrant], ids=lambda kind: kind.__name__)
all_kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(reentrant, marks=fails_on_stock),
        pytest.param(non_reentrant, marks=fails_on_stock),
        pytest.param(of_torch_xla, marks=passes_on_stock),
    ],
    ids=lambda kind: kind.__name__,
)


def data(*shape, dtype=f32, seed=0):
    """Random numbers that are device data."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def block():
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
    return layers.to(DEVICE)


def input_and_weight_gradients(run, layers, x):
    x = x.detach().clone().requires_grad_()
    layers.zero_grad()
    run(layers, x).square().sum().backward()
    return [g.cpu() for g in (x.grad, *(p.grad for p in layers.parameters()))]


# ---- what is computed


@all_kinds
def test_gradients_are_those_without_checkpointing(kind):
    layers, x = block(), data(8, 16)
    plain = input_and_weight_gradients(lambda layers, x: layers(x), layers, x)
    for actual, expected in zip(input_and_weight_gradients(kind, layers, x), plain, strict=True):
        torch.testing.assert_close(actual, expected)


@all_kinds
@pytest.mark.parametrize("step_between", [False, True], ids=["one_graph", "a_step_between"])
def test_dropout_has_the_same_mask_again(kind, step_between):
    """The gradient of a dropout of ones is its output, if both passes drop the same."""
    x = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    masks = []
    for _ in range(2):
        x.grad = None
        y = kind(dropout, x)
        if step_between:
            torch_xla.sync()
        y.sum().backward()
        assert torch.equal(x.grad.cpu(), y.detach().cpu())
        assert 0.4 < y.count_nonzero().item() / y.numel() < 0.6
        masks.append(y.detach().cpu())
    assert not torch.equal(*masks)


@fails_on_stock
@torchs_two
def test_random_numbers_after_the_backward_pass_are_new(kind):
    """The recomputation puts the state back that it found."""
    states = []
    for use in (kind, lambda function, x: function(x)):
        x = torch.ones(8, 8, device=DEVICE, requires_grad=True)
        torch_xla.manual_seed(5)
        use(dropout, x).sum().backward()
        states.append(xm.get_rng_state())
    assert states[0] == states[1] != 5


@fails_on_stock
@torchs_two
def test_preserve_rng_state_false_draws_again(kind):
    x = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    y = kind(dropout, x, preserve_rng_state=False)
    y.sum().backward()
    assert not torch.equal(x.grad.cpu(), y.detach().cpu())


@fails_on_stock
@torchs_two
def test_autocast_is_that_of_the_forward_pass(kind):
    seen = []

    def matmul(x, w):
        seen.append((x @ w).dtype)
        return x @ w

    x, w = data(4, 8).requires_grad_(), data(8, 4, seed=1).requires_grad_()
    with torch.autocast("xla", dtype=bf16):
        y = kind(matmul, x, w)
    y.sum().backward()
    assert seen[0] == seen[-1] == bf16 and len(seen) == 2
    assert x.grad.dtype == w.grad.dtype == f32


@fails_on_stock
def test_ir_of_a_checkpointed_backward_pass():
    """After a step, the backward pass has in it what it recomputes: a mm, which the gradient of relu reads."""
    x, w = data(4, 8).requires_grad_(), data(8, 4, seed=1).requires_grad_()
    y = reentrant(lambda x, w: (x @ w).relu(), x, w)
    torch_xla.sync()
    y.sum().backward()
    ir(w.grad).expect("""\
%0 = s64[] prim::Constant()
%1 = s64[] prim::Constant()
%2 = f32[8,4] xla::device_data()
%3 = f32[4,8] xla::device_data()
%4 = f32[4,4] aten::mm(%3, %2)
%5 = pred[4,4] aten::le(%4, %1)
%6 = f32[] prim::Constant()
%7 = f32[] aten::expand(%6)
%8 = f32[4,4] aten::expand(%7)
%9 = f32[4,4] aten::masked_fill(%8, %5, %0)
%10 = f32[8,4] aten::permute(%3)
%11 = f32[8,4] aten::mm(%10, %9)
return %11
""")


@fails_on_stock
@torchs_two
def test_sequential(kind):
    layers, x = block(), data(8, 16)
    plain = input_and_weight_gradients(lambda layers, x: layers(x), layers, x)
    segments = input_and_weight_gradients(
        lambda layers, x: checkpoint_sequential(layers, 2, x, use_reentrant=kind is reentrant), layers, x
    )
    for actual, expected in zip(segments, plain, strict=True):
        torch.testing.assert_close(actual, expected)


@fails_on_stock
def test_twice_nested():
    x = torch.ones(16, 16, device=DEVICE, requires_grad=True)
    inner = lambda x: non_reentrant(dropout, x) * 2  # noqa: E731
    y = non_reentrant(inner, x)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


# ---- fork_rng


@fails_on_stock
@pytest.mark.parametrize("devices", [None, [0], ["xla"], [DEVICE]], ids=str)
def test_fork_rng(devices):
    torch_xla.manual_seed(3)
    with torch.random.fork_rng(devices, device_type="xla"):
        inside = torch.rand(4, device=DEVICE).cpu()
    assert torch.equal(torch.rand(4, device=DEVICE).cpu(), inside)


# ---- torch.xla


@pytest.fixture
def module():
    return importlib.import_module("torch.xla")


@fails_on_stock
def test_the_module(module):
    assert module is torch.xla is torch.get_device_module("xla") is torch.get_device_module(DEVICE)
    assert module.is_available() and module.is_initialized()
    assert module.device_count() == torch_xla.device_count()
    assert module.current_device() == DEVICE.index
    assert not hasattr(module, "Stream") and not hasattr(module, "Event")


@fails_on_stock
def test_a_state_comes_back_whole(module):
    for seed in (0, 7, 2**63 + 5, 2**64 - 1):
        module.manual_seed(seed)
        assert xm.get_rng_state() == seed
        state = module.get_rng_state(DEVICE)
        assert (state.dtype, state.shape, state.device.type) == (torch.uint8, (8,), "cpu")
        module.manual_seed_all(1)
        module.set_rng_state(state)
        assert xm.get_rng_state() == seed
    module.manual_seed(-1)
    assert xm.get_rng_state() == 2**64 - 1


@fails_on_stock
@pytest.mark.parametrize(
    ("state", "message"),
    [
        (5, "expected a state from get_rng_state, uint8[8] on the CPU, found int"),
        (torch.zeros(8), "expected a state from get_rng_state, uint8[8] on the CPU, found torch.float32[8] on cpu"),
        (
            torch.zeros(16, dtype=torch.uint8),
            "expected a state from get_rng_state, uint8[8] on the CPU, found torch.uint8[16] on cpu",
        ),
    ],
    ids=["int", "float", "size"],
)
def test_a_state_of_another_kind_is_refused(module, state, message):
    with pytest.raises(TypeError) as info:
        module.set_rng_state(state)
    assert str(info.value) == message


@fails_on_stock
def test_devices_that_are_not_there_are_refused(module):
    count = module.device_count()
    for use in (module.set_device, module.device, module.get_rng_state):
        with pytest.raises(ValueError, match=f"expected the index of one of this process's {count} XLA devices"):
            use(count)
        with pytest.raises(ValueError, match="expected an XLA device, found 'cpu'"):
            use("cpu")
    with pytest.raises(ValueError, match="expected the index of an XLA device, found -1"):
        module.get_rng_state(-1)


TWO_DEVICES = """
import threading
import torch, torch_xla
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint
xla = torch.xla
assert xla.device_count() == 2 and xla.current_device() == 0
with xla.device(1):
    assert xla.current_device() == 1 and torch.empty(1, device="xla").device.index == 1
    with xla.device(-1):
        assert xla.current_device() == 1
    thread = threading.Thread(target=lambda: seen.append(xla.current_device()))
    seen = []
    thread.start(), thread.join()
    assert seen == [0]
assert xla.current_device() == 0
try:
    with xla.device(1):
        raise KeyError
except KeyError:
    assert xla.current_device() == 0
for reentrant in (True, False):
    x = torch.ones(64, 64, device="xla:1", requires_grad=True)
    xla.manual_seed_all(3)
    y = checkpoint(dropout, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
"""


@fails_on_stock
def test_the_second_of_two_devices():
    forked("-c", TWO_DEVICES, CPU_NUM_DEVICES="2")


FORK = """
import os
import torch, torch_xla
def child(check):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert child(lambda: not torch.xla._is_in_bad_fork())
torch_xla.device()
torch_xla._XLAC._xla_get_devices()
assert child(torch.xla._is_in_bad_fork)
assert not torch.xla._is_in_bad_fork()
"""


@fails_on_stock
def test_forks():
    forked("-c", FORK)


# ---- wide gradients


@fails_on_stock
@pytest.mark.parametrize("kind", [reentrant, non_reentrant, of_torch_xla], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("view", [False, True], ids=["leaf", "view"])
def test_a_weight_as_an_argument_keeps_its_grad_dtype(kind, view):
    """The gradient of a product with a float32 tensor is float32, and nothing rounds it on its way to the leaf."""
    w = data(8, 4, dtype=bf16, seed=1).requires_grad_()
    w.grad_dtype = f32
    x = data(8, 4)
    kind(lambda x, w: x * (w.t() if view else w), x, w.t() if view else w).square().sum().backward()
    assert w.grad.dtype == f32
    exact = 2 * x.cpu().double().square() * w.detach().cpu().double()
    torch.testing.assert_close(w.grad.cpu().double(), exact, rtol=1e-6, atol=1e-6)
