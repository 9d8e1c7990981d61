"""Maxima and minima of floating-point numbers that begin at -inf and inf: patches/torch_xla/on-device."""

import resource
from pathlib import Path

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock
from tensors import DEVICE

INF = float("inf")
FUNCTIONS = {
    "amax": lambda x: x.amax(1),
    "amax of all": lambda x: x[:1].amax(),
    "amax, keepdim": lambda x: x.amax((-1, 0), keepdim=True),
    "amin": lambda x: (-x).amin(1),
    "aminmax": lambda x: torch.stack(torch.aminmax(-x, dim=1)),
    "max": lambda x: x[0].max(),
    "max of a dimension": lambda x: x.max(1)[0],
    "max of a dimension, keepdim": lambda x: x.max(-1, keepdim=True)[0],
    "min": lambda x: (-x[0]).min(),
    "min of a dimension": lambda x: (-x).min(1)[0],
}


def rows(dtype):
    least = torch.finfo(dtype).min
    return torch.tensor([[-INF, -INF, -INF], [1, -INF, 2], [least, -INF, -INF], [INF, -INF, 0]], dtype=dtype)


def assert_as_on_the_cpu(function, x):
    found, expected = function(x.to(DEVICE)), function(x)
    assert found.dtype == expected.dtype
    assert torch.equal(found.cpu(), expected)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@fails_on_stock
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.float64), ids=str)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("amax, keepdim", "aminmax")])
def test_of_infinities_alone(name, dtype):
    for _ in range(2):  # the second call copies the node of the first
        assert_as_on_the_cpu(FUNCTIONS[name], rows(dtype))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32), ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_other_numbers(name, dtype):
    for _ in range(2):
        assert_as_on_the_cpu(FUNCTIONS[name], torch.tensor([[3, -1, 2], [-7, -9, -8]]).to(dtype))


@fails_on_stock
def test_gradients_of_infinities_alone():
    """Stock divides by the number of elements that are the maximum, which is none."""
    gradients = []
    for device in ("cpu", DEVICE):
        x = torch.tensor([[-INF, -INF], [3.0, 4.0]], device=device, requires_grad=True)
        (x.amax(1).sum() + x[0].max()).backward()
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients)


@fails_on_stock
def test_in_eager_mode():
    from torch_xla.experimental import eager_mode_context

    x = rows(torch.float32).to(DEVICE)
    with eager_mode_context(enable=True):
        found = [x.amax(1) for _ in range(3)]
    for f in found:
        assert f.cpu()[0] == -INF


@pytest.mark.since("2.9", "some of them end the process before")
def test_wrong_dimensions_are_refused():
    x = torch.ones(2, 3, device=DEVICE)
    for refused in (lambda: x.amax(2), lambda: x.amax((0, -2)), lambda: x.max(2), lambda: x[:, :0].amax(1)):
        with pytest.raises((IndexError, RuntimeError)):
            refused()


def test_nodes_are_those_of_stock_by_name():
    x = torch.ones(2, 3, device=DEVICE)
    torch_xla.sync()
    for function, name in ((lambda: x.amax(1), "aten::amax"), (lambda: x.max(1)[0], "aten::max"), (x.min, "aten::min")):
        for _ in range(2):
            assert name in ir(function())


def test_what_is_kept_for_later_calls_holds_no_buffer():
    x = torch.ones(4096, 4096, device=DEVICE)  # 64 MiB
    torch_xla.sync(wait=True)
    x.amax(1), x.max(1), x.min()
    before = resident_bytes()
    del x
    torch_xla.sync(wait=True)
    assert resident_bytes() < before - 2**25
