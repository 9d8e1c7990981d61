"""exact-dots, as the TPU compiler sees its programs."""

import pytest
import torch
from device_data import data
from marks import fails_on_stock, passes_on_stock
from torch.nn.functional import conv2d, linear

from castoff.formats.xla_text import parse_hlo
from castoff.tpu.trace import program_of

bf16, f32 = torch.bfloat16, torch.float32
ROWS, INNER, COLUMNS = 512, 256, 384


@pytest.fixture(params=["default", "highest"])
def precision(request, set_matmul_precision):
    """The precision of matrix products, for one test."""
    set_matmul_precision(request.param)
    return request.param


def widened(t):
    return t.float()


def by_stock(t):
    """The same where exact-dots does not see it: an addition of nothing, which the compiler removes."""
    return t.float().add(0)


def step(wide):
    """An island of float32 in a bfloat16 program: its result and both gradients, pending."""
    x, w = data(ROWS, INNER).requires_grad_(), data(COLUMNS, INNER).requires_grad_()
    y = linear(wide(x), wide(w)).to(bf16)
    y.backward(data(ROWS, COLUMNS))
    return [y, x.grad, w.grad]


@passes_on_stock
def test_an_island_of_float32(tpu_hlo, topology, precision):
    """Not more cycles or bytes than with float32 copies; this compiler sees through them."""
    stock, ours = (tpu_hlo(step(wide), topology) for wide in (by_stock, widened))
    assert ours.estimated_cycles <= stock.estimated_cycles
    assert ours.memory["temp"] <= stock.memory["temp"]


def image_step(wide):
    """The same of a convolution."""
    x, w = data(8, 128, 32, 32).requires_grad_(), data(256, 128, 3, 3).requires_grad_()
    y = conv2d(wide(x), wide(w), padding=1).to(bf16)
    y.backward(data(8, 256, 32, 32))
    return [y, x.grad, w.grad]


@passes_on_stock
def test_a_convolution_of_float32(tpu_hlo, topology):
    stock, ours = (tpu_hlo(image_step(wide), topology) for wide in (by_stock, widened))
    assert ours.estimated_cycles <= stock.estimated_cycles
    assert ours.memory["temp"] <= stock.memory["temp"]


@fails_on_stock
def test_the_program_takes_bfloat16(tpu_compiler, topology):
    """What the compiler is given has no convert, and what it makes of it none either."""
    x, w = data(256, 512), data(128, 512)
    program, partitions = program_of([linear(x.float(), w.float())])
    assert b"convert" not in program
    converts = parse_hlo(tpu_compiler.compile(program, topology, partitions).hlo).converts()
    assert converts == []
