"""What ``Tensor.grad_dtype`` does to a graph: patches/torch/grad-dtype. The engine's casts are in it, or are not."""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f32

#: The IR of a product's gradient.
WIDE = """\
%0 = f32[] prim::Constant()
%1 = f32[] aten::expand(%0)
%2 = f32[4,6] xla::device_data()
%3 = f32[4,6] aten::mul(%2, %1)
"""


class Product(torch.autograd.Function):
    """The sum of w * x, whose gradient reaches w in the dtype of x."""

    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(x)
        return (w.to(x.dtype) * x).sum()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad, None


def leaf(dtype, **declared):
    w = torch.ones(4, 6, dtype=dtype).to(DEVICE).requires_grad_()
    for name, value in declared.items():
        setattr(w, name, value)
    return w


def data(dtype):
    return torch.full((4, 6), 1 + 2**-10).to(dtype).to(DEVICE)


@passes_on_stock
def test_without_one_the_engine_casts():
    w = leaf(bf16)
    Product.apply(w, data(f32)).backward()
    assert ir(w.grad) == WIDE + "%4 = bf16[4,6] xla::cast(%3)\nreturn %4\n"


@fails_on_stock
def test_a_wide_gradient_arrives_as_it_is():
    w = leaf(bf16, grad_dtype=f32)
    Product.apply(w, data(f32)).backward()
    assert ir(w.grad) == WIDE + "return %3\n"
    assert w.grad.cpu().eq(1 + 2**-10).all()


@fails_on_stock
@pytest.mark.since("2.6", "this IR of an addition")
def test_micro_batches_are_added_in_it():
    w, x = leaf(bf16, grad_dtype=f32), data(f32)
    Product.apply(w, x).backward()
    torch_xla.sync()
    Product.apply(w, x).backward()
    ir(w.grad).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] prim::Constant()
%2 = f32[] aten::expand(%1)
%3 = f32[4,6] xla::device_data()
%4 = f32[4,6] aten::mul(%3, %2)
%5 = f32[4,6] xla::device_data()
%6 = f32[4,6] aten::add(%5, %4, %0)
return %6
""")
    assert w.grad.cpu().eq(2 + 2**-9).all()


@fails_on_stock
def test_a_narrow_one_is_one_cast():
    w = leaf(f32, grad_dtype=bf16)
    Product.apply(w, data(f32)).backward()
    assert ir(w.grad) == WIDE + "%4 = bf16[4,6] xla::cast(%3)\nreturn %4\n"


@fails_on_stock
@pytest.mark.since("2.6", "this IR of a product of bfloat16 tensors")
def test_none_takes_what_comes():
    w = leaf(f32, grad_dtype=None)
    Product.apply(w, data(bf16)).backward()
    ir(w.grad).expect("""\
%0 = bf16[] prim::Constant()
%1 = bf16[] aten::expand(%0)
%2 = f32[] xla::cast(%1)
%3 = bf16[4,6] xla::device_data()
%4 = f32[4,6] xla::cast(%3)
%5 = f32[4,6] aten::mul(%4, %2)
%6 = bf16[4,6] xla::cast(%5)
return %6
""")
