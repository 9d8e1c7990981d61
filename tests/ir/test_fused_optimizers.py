"""Fused optimizers and foreach clipping of XLA tensors: patches/torch_xla/fused-optimizers.

Tests marked ``fails_on_stock`` state what the topic is for, those marked ``passes_on_stock`` what it leaves alone.
"""

import inspect

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

OPTIMIZERS = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad]

all_optimizers = pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: make.__name__)


def parameter(device=DEVICE, gradient=2.0):
    w = torch.tensor([1.0, -2.0, 3.0]).to(device).requires_grad_()
    w.grad = torch.tensor([gradient, -1.0, 0.5]).to(device)
    return w


def stepped(make, device=DEVICE, **options):
    w = parameter(device)
    optimizer = make([w], lr=0.1, **options)
    optimizer.step()
    optimizer.step()
    return w, optimizer


# ---- optimizers


@fails_on_stock
@all_optimizers
def test_a_fused_step_is_that_of_the_for_loop(make):
    """The same graph, and state on the same devices."""
    (w, optimizer), (other_w, other) = stepped(make, fused=True), stepped(make)
    assert ir(w) == ir(other_w)
    assert optimizer.param_groups[0]["fused"] is False
    ours, theirs = optimizer.state[w], other.state[other_w]
    assert {name: ours[name].device for name in ours} == {name: theirs[name].device for name in theirs}


@fails_on_stock
def test_options_of_a_fused_step():
    for options in ({"amsgrad": True}, {"weight_decay": 0.1, "maximize": True}, {"capturable": True}):
        w, _ = stepped(torch.optim.AdamW, fused=True, **options)
        assert ir(w) == ir(stepped(torch.optim.AdamW, **options)[0])


@fails_on_stock
def test_numbers_of_a_fused_step():
    w, _ = stepped(torch.optim.AdamW, fused=True)
    torch.testing.assert_close(w.detach().cpu(), stepped(torch.optim.AdamW, "cpu")[0].detach())


@fails_on_stock
def test_ir_of_a_fused_step():
    w = torch.ones(4).to(DEVICE).requires_grad_()
    w.grad = torch.full((4,), 2.0).to(DEVICE)
    torch.optim.SGD([w], lr=0.1, fused=True).step()
    ir(w).expect("""\
%0 = f32[] xla::device_data()
%1 = f32[4] xla::device_data()
%2 = f32[4] xla::device_data()
%3 = f32[4] aten::add(%2, %1, %0)
return %3
""")


@fails_on_stock
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad], ids=lambda make: make.__name__)
def test_the_state_of_a_fused_optimizer_on_the_cpu_is_loaded(make):
    """Its steps go to the device, as those of every fused optimizer do, and come back at the first step."""
    w, source = stepped(make, "cpu", fused=True)
    on_xla = w.detach().to(DEVICE).requires_grad_()
    optimizer = make([on_xla], lr=0.1)
    optimizer.load_state_dict(source.state_dict())
    on_xla.grad = w.grad.to(DEVICE)
    optimizer.step()
    source.step()
    step = optimizer.state[on_xla]["step"]
    assert (step.device.type, step.item()) == ("cpu", 3)
    torch.testing.assert_close(on_xla.detach().cpu(), w.detach())


@fails_on_stock
def test_a_group_that_is_added_later():
    first, second = parameter(), parameter()
    optimizer = torch.optim.SGD([first], lr=0.5, fused=True)
    optimizer.add_param_group({"params": [second], "fused": True})
    optimizer.step()
    assert ir(first) == ir(second)


@fails_on_stock
def test_a_scaler_unscales_the_gradients_itself():
    optimizer = torch.optim.AdamW([torch.ones(3, device=DEVICE, requires_grad=True)], fused=True)
    assert not optimizer._step_supports_amp_scaling


@passes_on_stock
@all_optimizers
def test_a_fused_step_on_the_cpu_is_fused(make):
    _, optimizer = stepped(make, "cpu", fused=True)
    assert optimizer.param_groups[0]["fused"] is True
    assert next(iter(inspect.signature(make).parameters)) == "params"


@passes_on_stock
def test_fused_and_foreach_together_are_refused():
    with pytest.raises(RuntimeError, match="cannot be `True` together"):
        torch.optim.AdamW([torch.ones(3, device=DEVICE, requires_grad=True)], fused=True, foreach=True)


# ---- clipping


@fails_on_stock
def test_clip_grad_norm_with_foreach():
    for norm_type in (2.0, float("inf")):
        ours, on_cpu = [parameter(), parameter(gradient=0.1)], [parameter("cpu"), parameter("cpu", 0.1)]
        norm = clip_grad_norm_(iter(ours), 0.5, norm_type, foreach=True)
        expected = clip_grad_norm_(iter(on_cpu), 0.5, norm_type, foreach=True)
        torch.testing.assert_close([norm.cpu(), *(p.grad.cpu() for p in ours)], [expected, *(p.grad for p in on_cpu)])


@passes_on_stock
def test_clip_grad_norm_without_foreach_is_torch_xlas():
    w, other = parameter(), parameter()
    clip_grad_norm_(w, 0.5)
    torch_xla._patched_functions.clip_grad_norm_(other, 0.5)
    assert ir(w.grad) == ir(other.grad)


@fails_on_stock
def test_clip_grad_value_with_foreach():
    w = parameter()
    clip_grad_value_(w, 0.75, foreach=True)
    assert w.grad.tolist() == [0.75, -0.75, 0.5]


@fails_on_stock
def test_clip_grad_norm_with_foreach_refuses_what_is_not_finite():
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(parameter(gradient=float("nan")), 1.0, error_if_nonfinite=True, foreach=True)
