"""Gradients of collectives: patches/torch_xla/collective-gradients."""

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked

DEVICE = "xla"


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
def test_collective_permute_of_one_rank():
    x = leaf(4, 2)
    xm.collective_permute(x, [[0, 0]]).square().sum().backward()
    assert torch.equal(x.grad.cpu(), 2 * x.detach().cpu())


@fails_on_stock
def test_ir_of_a_gradient():
    x = leaf(4)
    torch_xla.sync()  # also the token of collectives before
    y = xm.reduce_scatter(xm.REDUCE_SUM, x, scale=0.5, scatter_dim=0, shard_count=1)
    (grad,) = torch.autograd.grad(y, x, torch.ones(4, device=DEVICE))
    ir(grad).expect("""\
%0 = f32[] xla::device_data()
%1 = f32[] prim::Constant()
%2 = f32[4] aten::expand(%1)
%3 = f32[4] aten::mul(%2, %0)
return %3
""")


SEVERAL_RANKS = """
import torch, torch_xla
import torch_xla.core.xla_model as xm

def hlo(t):
    return torch_xla._XLAC._get_xla_tensors_hlo([t])

x = torch.ones(4, 2).to("xla").requires_grad_()
y = xm.reduce_scatter(xm.REDUCE_SUM, x, 0.5, scatter_dim=1, shard_count=2, groups=[[0, 1], [2, 3]])
(grad,) = torch.autograd.grad(y.sum(), x)
assert y.shape == (4, 1) and grad.shape == x.shape
assert "all-gather(" in hlo(grad) and "replica_groups={{0,1},{2,3}}, dimensions={1}" in hlo(grad), hlo(grad)

y = xm.all_to_all(x, split_dimension=0, concat_dimension=1, split_count=2, groups=[[0, 1]])
(grad,) = torch.autograd.grad(y.sum(), x)
assert y.shape == (2, 4) and grad.shape == x.shape
assert hlo(grad).count("all-to-all(") > hlo(y).count("all-to-all("), hlo(grad)

y = xm.collective_permute(x, [[0, 1], [1, 2]])
(grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
assert "source_target_pairs={{1,0},{2,1}}" in hlo(grad), hlo(grad)
"""


@fails_on_stock
def test_graphs_of_several_ranks():
    """In a process of its own: what follows in it would wait for the other ranks."""
    forked("-c", SEVERAL_RANKS)


UNDER_SPMD = """
import pytest, torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

xr.use_spmd()
x = torch.ones(4, 2).to("xla").requires_grad_()
for call, factor in (
    (lambda: xm.reduce_scatter(xm.REDUCE_SUM, x, 0.5, scatter_dim=1, shard_count=1), 0.5),
    (lambda: xm.all_to_all(x, split_dimension=0, concat_dimension=1, split_count=1), 1.0),
    (lambda: xm.collective_permute(x, [[0, 0]]), 1.0),
):
    (grad,) = torch.autograd.grad(call().sum(), x)
    assert torch.equal(call().cpu(), torch.full((4, 2), factor)) and torch.equal(grad.cpu(), call().cpu())
for call in (
    lambda: xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, scatter_dim=0, shard_count=4),
    lambda: xm.all_to_all(x, 0, 1, 2),
    lambda: xm.collective_permute(x, [[0, 1], [1, 0]]),
):
    with pytest.raises(ValueError, match="under SPMD, where the program is one rank"):
        call()
"""


@fails_on_stock
def test_collectives_under_spmd():
    forked("-c", UNDER_SPMD, CPU_NUM_DEVICES="4")


def all_reduced(x, target):
    target.copy_(x)
    xm.all_reduce(xm.REDUCE_SUM, [target], scale=0.5)


def gathered(x, target):
    xm.all_gather(x, output=target)


def gathered_list(x, target):
    xm.all_gather([x], output=[target], pin_layout=False)


def scattered(x, target):
    xm.reduce_scatter(xm.REDUCE_SUM, x, scale=0.5, scatter_dim=0, shard_count=1, output=target)


@fails_on_stock
@pytest.mark.parametrize("write", [all_reduced, gathered, gathered_list, scattered])
def test_results_that_are_views(write, monkeypatch):
    monkeypatch.setenv("XLA_ALWAYS_ALLREDUCE", "1")
    buffer = torch.zeros(3, 2, device=DEVICE)
    view = buffer.view(-1)
    write(leaf(2).detach() + 1, buffer[1])
    expected = [0.0, 0.0, 1.0, 2.0, 0.0, 0.0] if "gathered" in write.__name__ else [0.0, 0.0, 0.5, 1.0, 0.0, 0.0]
    assert view.tolist() == buffer.flatten().tolist() == expected


@passes_on_stock
def test_a_buffer_whose_views_were_written_is_reduced():
    buffer = torch.zeros(2, 2, device=DEVICE)
    buffer[0] += 1
    xm.all_reduce(xm.REDUCE_SUM, [buffer])
    assert buffer.tolist() == [[1.0, 1.0], [0.0, 0.0]]


@passes_on_stock
def test_what_has_no_gradient():
    x = leaf(4)
    assert xm.reduce_scatter(xm.REDUCE_MAX, x, 1.0, 0, 1).is_leaf
    assert xm.all_to_all(x.detach(), 0, 0, 1).is_leaf
    with torch.no_grad():
        assert xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 1).is_leaf
    (listed,) = xm.reduce_scatter(xm.REDUCE_SUM, [x.detach()], 1.0, 0, 1, pin_layout=False)
    assert torch.equal(listed.cpu(), x.detach().cpu())
