"""Calls that torch refuses for the dtypes of their tensors, and cat and conv_transpose, which promote:
patches/torch_xla/values, mixed-operands and result-dtypes.
"""

import pytest
import torch
import torch.nn.functional as F
from marks import fails_on_stock
from tensors import DEVICE

ROWS = torch.tensor([[3, -2, 5], [-7, 1, 4]])
INDEX = torch.tensor([0, 1, 0])

OF_INTEGERS = {
    "celu": F.celu,
    "elu": F.elu,
    "gelu": F.gelu,
    "glu": lambda x: F.glu(x, 0),
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "nll_loss": lambda x: F.nll_loss(x, INDEX[:2].to(x.device)),
    "norm": torch.norm,
    "selu": F.selu,
    "silu": F.silu,
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, x.sign()),
    "softmax": lambda x: x.softmax(-1),
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "svdvals": torch.linalg.svdvals,
    "interpolate bilinear": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "interpolate trilinear": lambda x: F.interpolate(x[None, None, None], scale_factor=2, mode="trilinear"),
}
OF_BOOLS = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "hardtanh": F.hardtanh,
    "round": torch.round,
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
}
OF_TWO = {
    "conv2d": lambda x: F.conv2d(x[None, None], torch.full((1, 1, 1, 1), 0.5, device=x.device)),
    "index_add": lambda x: x.index_add(1, INDEX.to(x.device), x * 0.5),
    "index_copy": lambda x: x.index_copy(1, INDEX.to(x.device), x * 0.5),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x * 0.5),
    "scatter": lambda x: x.scatter(0, (x > 0).long(), x * 0.5),
    "scatter_add": lambda x: x.scatter_add(0, (x > 0).long(), x * 0.5),
}


def refused(call, x):
    with pytest.raises(RuntimeError):
        call(x)
    with pytest.raises(RuntimeError, match=r"as on the CPU|same dtype"):
        call(x.to(DEVICE))


@fails_on_stock
@pytest.mark.parametrize("call", OF_INTEGERS.values(), ids=OF_INTEGERS.keys())
def test_integers_are_refused_at_the_call(call):
    refused(call, ROWS)


@fails_on_stock
@pytest.mark.parametrize("call", OF_BOOLS.values(), ids=OF_BOOLS.keys())
def test_bools_are_refused_at_the_call(call):
    refused(call, ROWS > 0)


@fails_on_stock
@pytest.mark.parametrize("call", OF_TWO.values(), ids=OF_TWO.keys())
def test_integers_beside_floats_are_refused_at_the_call(call):
    refused(call, ROWS)


def test_a_norm_of_integers_is_right_with_a_dtype():
    assert torch.allclose(torch.norm(ROWS.to(DEVICE), 2, dtype=torch.float32).cpu(), torch.norm(ROWS.float()))


@fails_on_stock
@pytest.mark.parametrize("first", [torch.int64, torch.bool, torch.bfloat16])
def test_cat_promotes_what_has_no_elements(first):
    empty = torch.empty(0, dtype=first)
    for tensors in ([empty, torch.empty(0)], [empty, torch.ones(2)], [torch.ones(2, dtype=first), torch.empty(0)]):
        expected, found = torch.cat(tensors), torch.cat([t.to(DEVICE) for t in tensors])
        assert found.dtype == expected.dtype and torch.equal(found.cpu(), expected)


def test_a_transposed_convolution_takes_a_bias_of_another_dtype():
    x, weight, bias = torch.ones(1, 1, 3), torch.ones(1, 1, 2), torch.ones(1, dtype=torch.float64)
    found = F.conv_transpose1d(x.to(DEVICE), weight.to(DEVICE), bias.to(DEVICE))
    assert found.dtype == torch.float32 and torch.equal(found.cpu(), F.conv_transpose1d(x, weight, bias))
