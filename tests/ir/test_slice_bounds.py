"""Slices with bounds beyond the tensor: patches/torch_xla/slice-bounds."""

import pytest
import torch
import torch_xla
from compared import assert_all_same
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE

BOUNDS = (None, -100, -15, -13, -12, -3, 0, 5, 12, 15)


def rows(device, dtype=torch.float32):
    return torch.arange(24.0).view(2, 12).to(dtype).to(device)


def assert_same(*functions):
    """Results are those of the CPU; all are computed in one graph."""
    assert_all_same([function(DEVICE) for function in functions], [function("cpu") for function in functions])


@fails_on_stock
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool), ids=str)
def test_every_pair_of_bounds(dtype):
    pairs = [(start, end, step) for start in BOUNDS for end in BOUNDS for step in (1, 3)]
    assert_same(*(lambda device, s=s, e=e, t=t: rows(device, dtype)[:, s:e:t] for s, e, t in pairs))


@fails_on_stock
def test_gradients():
    def gradient(start, end):
        def of(device):
            x = rows(device).requires_grad_()
            (grad,) = torch.autograd.grad(x[:, start:end].square().sum() + x.sum(), x)
            return grad

        return of

    assert_same(*(gradient(start, end) for start in BOUNDS for end in (-15, 5, None)))


@fails_on_stock
@pytest.mark.since("2.6", "functionalization on XLA")
def test_writes_to_slices():
    def written(device):
        x = rows(device)
        x[:, -15:5] = 7
        x[:, -20:-15] = 3
        x[:, -13:2].add_(1)[:, -5:1].mul_(2)
        x[-9:].view(-1)[-100:3] = -1
        return x

    def scattered(device):
        return torch.slice_scatter(rows(device), torch.zeros(2, 5, device=device), 1, -15, 5)

    def backward(device):
        return torch.ops.aten.slice_backward(torch.ones(2, 5, device=device), [2, 12], 1, -15, 5, 1)

    assert_same(written, scattered, backward, lambda device: rows(device).tensor_split([-15, 3, 40], 1)[1])


@fails_on_stock
def test_no_elements():
    def written(device):
        x = torch.zeros(2, 0, device=device)
        x[:, -3:].add_(1)
        return x

    assert_same(written)


@fails_on_stock
def test_cache_with_a_window_that_is_longer_than_the_prompt():
    """What transformers' SlidingWindowCache does with a prompt of 12 tokens."""

    def states(device):
        cache = torch.cat([rows(device), rows(device)[:, :1]], dim=1)
        return cache[:, -15 + 1 :]

    assert_same(states)


@pytest.mark.since("2.9", "slices of all elements that make no node")
@fails_on_stock
def test_ir_of_a_clamped_slice():
    x = rows(DEVICE)
    torch_xla.sync()
    ir(x[:, -15:5]).expect("""\
%0 = f32[2,12] xla::device_data()
%1 = f32[2,5] xla::select(%0)
return %1
""")


@passes_on_stock
@pytest.mark.parametrize(
    "refused",
    (
        lambda x: x.select(1, -13),
        lambda x: x.select(1, 12),
        lambda x: x[:, 12],
        lambda x: x.narrow(1, -13, 2),
        lambda x: x.narrow(1, 13, 1),
        lambda x: x.narrow(1, 0, 13),
        pytest.param(
            lambda x: x[0, 0][0:1],
            id="0-d",
            marks=pytest.mark.since("2.9", "the sentence of slice() for tensors of no dimensions"),
        ),
        lambda x: x[:, 0:3:0],
    ),
)
def test_what_the_cpu_refuses(refused):
    """By the same sentence."""
    with pytest.raises((IndexError, RuntimeError, ValueError)) as expected:
        refused(rows("cpu"))
    with pytest.raises(expected.type) as found:
        refused(rows(DEVICE))
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
