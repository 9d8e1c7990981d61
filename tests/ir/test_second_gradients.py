"""Gradients of gradients through torch_xla's own functions of autograd: patches/torch_xla/values."""

import pytest
import torch
import torch.nn.functional as F
import torch_xla
from live_tensors import live_tensors
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE, f32, random
from torch.utils.checkpoint import checkpoint

SQUARE = random(4, 4, dtype=f32)
IMAGES = random(2, 3, 6, 6, dtype=f32)

FUNCTIONS = {
    "einsum of one": (lambda x: torch.einsum("ii->i", x), SQUARE),
    "einsum of itself": (lambda x: torch.einsum("ij,kj->ik", x, x), SQUARE),
    "einsum with a constant": (lambda x: torch.einsum("ij,jk->ik", x.exp(), x.detach()), SQUARE),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), IMAGES),
    "max_pool2d with padding": (lambda x: F.max_pool2d(x, 3, 2, 1, 1, True), IMAGES),
    "max_pool3d": (lambda x: F.max_pool3d(x, (1, 2, 2), (1, 2, 2)), IMAGES),
}
every = pytest.mark.parametrize(("function", "x"), FUNCTIONS.values(), ids=FUNCTIONS)


def of_both_devices(compute, *cpu):
    found, expected = (compute(*(t.to(device) for t in cpu)) for device in (DEVICE, "cpu"))
    torch.testing.assert_close([t.detach().cpu() for t in found], [t.detach() for t in expected], rtol=1e-4, atol=1e-4)


def first_and_second(function, x):
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(3).sum(), x)
    return first, second


@fails_on_stock
@every
def test_second_gradients(function, x):
    of_both_devices(lambda x: first_and_second(function, x), x)


@fails_on_stock
@every
def test_after_a_backward_that_keeps_the_graph(function, x):

    def compute(x):
        x = x.clone().requires_grad_()
        loss = function(x).pow(2).sum()
        loss.backward(retain_graph=True)
        torch_xla.sync()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        first.sum().backward()
        return first, x.grad

    of_both_devices(compute, x)


@fails_on_stock
def test_a_gradient_penalty():
    """A critic with max pooling learns from the gradient of its input."""

    def compute(images, weight):
        images, weight = images.clone().requires_grad_(), weight.clone().requires_grad_()
        scores = F.max_pool2d(F.conv2d(images, weight), 2).tanh().sum((1, 2, 3))
        (slope,) = torch.autograd.grad(scores.sum(), images, create_graph=True)
        (scores.mean() + (slope.flatten(1).norm(dim=1) - 1).square().mean()).backward()
        return weight.grad, images.grad

    of_both_devices(compute, IMAGES, random(2, 3, 3, 3, dtype=f32, seed=1))


def first(function, x):
    x = x.clone().requires_grad_()
    function(x).pow(2).sum().backward()
    return (x.grad,)


SPREAD = {
    "ij,jk->ik": ((3, 1), (4, 2)),
    "ij,ij->i": ((3, 1), (3, 4)),
    "bhid,bhjd->bhij": ((2, 1, 4, 1), (2, 2, 3, 5)),
}


@fails_on_stock
@pytest.mark.parametrize("equation", SPREAD)
def test_an_operand_of_einsum_that_is_spread(equation):
    """Its one element of a label meets several of the other operand's."""

    def compute(*operands):
        leaves = [x.clone().requires_grad_() for x in operands]
        loss = torch.einsum(equation, *leaves).sin().sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return (*first, *torch.autograd.grad(sum(x.square().sum() for x in first), leaves))

    of_both_devices(compute, *(random(*shape, dtype=f32, seed=i) for i, shape in enumerate(SPREAD[equation])))


@passes_on_stock
@every
def test_first_gradients(function, x):
    of_both_devices(lambda x: first(function, x), x)


@fails_on_stock
@every
def test_first_gradients_of_a_checkpoint(function, x):
    of_both_devices(lambda x: first(lambda x: checkpoint(function, x * 1, use_reentrant=False), x), x)


@passes_on_stock
def test_a_first_gradient_is_computed_by_torch_xla():
    x = torch.ones(2, 2).to(DEVICE).requires_grad_()
    torch.einsum("ij->ji", x).sum().backward()
    assert torch_xla._XLAC._get_xla_tensors_text([x.grad]).count("xla::einsum_backward") == 1


@passes_on_stock
@every
def test_a_backward_frees_what_was_saved(function, x):
    """Though the loss is still there, whose graph has the hooks."""
    x = x.to(DEVICE).requires_grad_()
    loss = function(x * 2).sum()
    before = live_tensors()
    loss.backward()
    after = live_tensors()
    assert after <= before
    del loss
    assert live_tensors() >= after - 1
