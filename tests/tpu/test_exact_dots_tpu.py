"""exact-dots, as the TPU compiler sees its programs."""

import pytest
import torch
import torch_xla
from device_data import data
from torch.nn.functional import linear

fails_on_stock = pytest.mark.fails_on_stock
bf16, f32 = torch.bfloat16, torch.float32
ROWS, INNER, COLUMNS = 2048, 1024, 1536


@pytest.fixture(params=["default", "highest"])
def precision(request):
    """The precision of matrix products, for one test."""
    outer = torch_xla._XLAC._xla_get_mat_mul_precision()
    torch_xla.backends.set_mat_mul_precision(request.param)
    yield request.param
    torch_xla.backends.set_mat_mul_precision(outer)


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


@fails_on_stock
def test_an_island_of_float32(tpu_hlo, topology, precision):
    """Not more cycles or bytes than with float32 copies; at the highest precision far fewer cycles."""
    stock, ours = (tpu_hlo(step(wide), topology) for wide in (by_stock, widened))
    assert ours.estimated_cycles <= stock.estimated_cycles
    assert ours.memory["temp"] <= stock.memory["temp"]
    if precision == "highest":
        assert ours.estimated_cycles < 0.7 * stock.estimated_cycles


@fails_on_stock
def test_a_product_takes_bfloat16(tpu_hlo, expect_tpu, topology):
    """No convert of an operand, and none of a rounded product."""
    x, w = data(256, 512), data(128, 512)
    program = tpu_hlo(linear(x.float(), w.float()), topology)
    assert program.converts == []
    expect_tpu(program.text)
