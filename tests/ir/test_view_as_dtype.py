"""on-device: `x.view(dtype)`, which on stock wheels leaves the device: patches/torch_xla/on-device."""

import itertools

import pytest
import torch
from lowered import on_the_device
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
PAIRS = [pair for pair in itertools.product(DTYPES, DTYPES) if pair[0] != pair[1]]


def bits(dtype, other):
    base = torch.arange(64, dtype=torch.uint8)
    return (base % 2 if torch.bool in (dtype, other) else base * 37).view(dtype).reshape(2, -1)


@fails_on_stock
@pytest.mark.parametrize("dtype, other", PAIRS, ids=lambda dtype: str(dtype)[6:])
def test_bits_of_one_dtype_in_another(dtype, other):
    x = bits(dtype, other)
    found = on_the_device(lambda: x.to(DEVICE).view(other))
    assert found.dtype == other
    assert torch.equal(found.cpu().view(torch.uint8), x.view(torch.uint8))


WRITES = {
    "of the same width": lambda x: x.view(torch.int32).add_(1 << 23),
    "of narrower elements": lambda x: x.view(torch.uint8)[:, 3].zero_(),
    "of wider elements": lambda x: x.view(torch.int64)[1].zero_(),
    "of a slice": lambda x: x[1:3].view(torch.int32).zero_(),
}


@fails_on_stock
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_writes_to_bits(write):
    def run(device):
        x = torch.arange(1.0, 17.0).view(4, 4).to(device)
        write(x)
        return x

    assert torch.equal(on_the_device(lambda: run(DEVICE)).cpu(), run("cpu"))


@fails_on_stock
def test_bits_in_a_compiled_function():
    """On stock the graph of a function that leaves the device for its result is lost."""

    def magnitude(x):
        return (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)

    torch._dynamo.reset()
    x = torch.arange(-3.0, 3.0)
    found = torch.compile(magnitude, backend="openxla", fullgraph=True)(x.to(DEVICE))
    assert torch.equal(found.cpu(), magnitude(x))


@passes_on_stock
@pytest.mark.parametrize("sizes, dtype", [((3, 3), torch.int64), ((), torch.uint8)])
def test_sizes_that_do_not_fit_are_refused(sizes, dtype):
    with pytest.raises(RuntimeError, match=r"self\.(size\(-1\)|dim\(\))"):
        torch.zeros(sizes, device=DEVICE).view(dtype)


@passes_on_stock
def test_bits_of_one_element_and_of_none():
    assert torch.tensor(1.0, device=DEVICE).view(torch.int32).cpu() == 0x3F800000
    assert torch.zeros(0, 4, device=DEVICE).view(torch.uint8).shape == (0, 16)


@passes_on_stock
def test_bits_have_no_gradient():
    assert not torch.ones(2, device=DEVICE, requires_grad=True).view(torch.int32).requires_grad
