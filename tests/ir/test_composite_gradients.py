"""Composite operators that torch_xla has kernels for: their gradients are right, and nothing warns of them."""

import warnings

import pytest
import torch
from ir_text import ir
from tensors import DEVICE

OPERATORS = {
    "cross": lambda x: torch.cross(x, x.flip(0), dim=1),
    "diag": torch.diag,
    "inverse": torch.inverse,
    "kl_div": lambda x: torch.nn.functional.kl_div(x, x.flip(0).abs(), reduction="sum"),
    "logdet": torch.logdet,
    "qr": lambda x: torch.qr(x)[1],
    "selu": torch.selu,
    "selu_": lambda x: torch.selu_(x * 1),
    "silu_backward": lambda x: torch.autograd.grad(torch.nn.functional.silu(x).sum(), x, create_graph=True)[0],
    "std": lambda x: x.std(),
    "std.dim": lambda x: x.std(0),
    "svd": lambda x: torch.svd(x)[1],
}


def false_warnings(caught):
    return [str(w.message) for w in caught if "an autograd kernel was not registered" in str(w.message)]


def gradient(function, device):
    x = (torch.eye(3) * 2 + torch.arange(9.0).reshape(3, 3) * 0.1).to(device).requires_grad_()
    function(x).sum().backward()
    return x.grad.cpu()


@pytest.mark.fails_on_stock
def test_gradients_are_right_and_nothing_warns():
    for name, function in OPERATORS.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = gradient(function, DEVICE)
        assert not false_warnings(caught), name
        torch.testing.assert_close(found, gradient(function, "cpu"))


@pytest.mark.fails_on_stock
def test_the_graph_is_that_of_stock():
    x = torch.ones(2, 2).to(DEVICE).requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.diag(x).sum().backward()
    assert not false_warnings(caught)
    ir(x.grad).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] aten::expand(%0)
%2 = f32[2] aten::expand(%1)
%3 = f32[] prim::Constant()
%4 = f32[2,2] aten::expand(%3)
%5 = f32[2,2] xla::diagonal_view_update(%4, %2)
return %5
""")


def reported():
    """Composite operators of which autograd would warn, but for those that write to `out` or are torch_xla's own."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_registrations_for_dispatch_key("XLA")
    return {
        name.removeprefix("aten::")
        for name in names
        if has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "AutogradXLA")
        if name.startswith("aten::") and not name.startswith("aten::_")
        if not any(argument.is_out for argument in schema_of(name).arguments)
    }


def schema_of(name):
    name, _, overload = name.partition(".")
    return torch._C._get_schema(name, overload)


@pytest.mark.fails_on_stock
def test_no_other_operator_is_reported():
    assert not reported()
