"""Gradients of collectives: patches/torch_xla/collective-gradients."""

import os

import pytest

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch
import torch_xla.core.xla_model as xm
from ir_text import ir

DEVICE = "xla"

fails_on_stock = pytest.mark.fails_on_stock
passes_on_stock = pytest.mark.passes_on_stock


def leaf(*sizes):
    return torch.arange(float(torch.Size(sizes).numel())).view(sizes).to(DEVICE).requires_grad_()


@fails_on_stock
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_reduce_scatter_of_one_rank(scale):
    x = leaf(4, 2)
    y = xm.reduce_scatter(xm.REDUCE_SUM, x, scale=scale, scatter_dim=0, shard_count=1)
    y.square().sum().backward()
    assert torch.equal(x.grad.cpu(), 2 * scale**2 * x.detach().cpu())


@fails_on_stock
def test_all_to_all_of_one_rank():
    x = leaf(4, 2)
    xm.all_to_all(x, 0, 1, 1, groups=[[0]]).square().sum().backward()
    assert torch.equal(x.grad.cpu(), 2 * x.detach().cpu())


@fails_on_stock
def test_a_shard_s_gradient_is_gathered_over_its_group():
    x = leaf(4, 2)
    y = xm.reduce_scatter(xm.REDUCE_SUM, x, 0.5, scatter_dim=1, shard_count=2, groups=[[0, 1], [2, 3]])
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert y.shape == (4, 1) and grad.shape == x.shape
    (gather,) = [line for line in ir(grad).splitlines() if "xla::all_gather" in line]
    assert "dim=1" in gather and "shard_count=2" in gather and "groups=((0, 1), (2, 3))" in gather


@fails_on_stock
def test_what_was_exchanged_goes_back():
    x = leaf(4, 2)
    y = xm.all_to_all(x, split_dimension=0, concat_dimension=1, split_count=2, groups=[[0, 1]])
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert y.shape == (2, 4) and grad.shape == x.shape
    (exchange,) = [line for line in ir(grad).splitlines() if "xla::all_to_all" in line]
    assert "split_dimension=1" in exchange and "concat_dimension=0" in exchange and "groups=((0, 1))" in exchange


@passes_on_stock
def test_without_gradients():
    x = leaf(4)
    with torch.no_grad():
        assert not xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 1).requires_grad
    assert not xm.reduce_scatter(xm.REDUCE_MAX, x, 1.0, 0, 1).requires_grad
    assert not xm.all_to_all(x.detach(), 0, 0, 1).requires_grad
    (listed,) = xm.reduce_scatter(xm.REDUCE_SUM, [x.detach()], 1.0, 0, 1, pin_layout=False)
    assert torch.equal(listed.cpu(), x.detach().cpu())
