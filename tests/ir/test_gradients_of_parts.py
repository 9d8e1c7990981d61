"""The gradients of a tensor's parts, as a TPU gets them: patches/torch_xla/unflattened-matmul."""

import pytest
import torch
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE, bf16, f32, random

pytestmark = pytest.mark.default_pin


def differentiated(read, dtype=bf16, shape=(3, 8, 6)):
    """The gradient of a tensor that was computed; `read` makes a list of its parts, each of which is used apart."""
    x = random(*shape, dtype=dtype, seed=0).to(DEVICE).requires_grad_()
    parts = read(x.exp())
    total = sum((part * random(*part.shape, dtype=dtype, seed=i).to(DEVICE)).sum() for i, part in enumerate(parts, 1))
    return torch.autograd.grad(total, x)[0]


def halves(x):
    return [x[..., :3], x[..., 3:]]


SIDE_BY_SIDE = {
    "elements": (lambda x: [x[0], x[1], x[2]], "aten::stack"),
    "elements in another order": (lambda x: [x[1], x[2], x[0]], "aten::stack"),
    "elements from the end": (lambda x: [x[-1], x[0], x[-2]], "aten::stack"),
    "elements of the last dimension": (lambda x: [x[..., i] for i in range(6)], "aten::stack"),
    "halves": (halves, "aten::cat"),
    "uneven ranges": (lambda x: [x[..., 5:], x[..., :2], x[..., 2:5]], "aten::cat"),
    "bounds beyond it": (lambda x: [x[..., -20:4], x[..., 4:99]], "aten::cat"),
    "narrow": (lambda x: [x.narrow(1, 0, 3), x.narrow(1, 3, 5)], "aten::cat"),
}
ADDED = {
    "not all": lambda x: [x[0], x[2]],
    "one twice": lambda x: [x[0], x[1], x[2], x[1]],
    "ranges that overlap": lambda x: [x[:, :5], x[:, 3:]],
    "two dimensions": lambda x: [x[:, :5], x[..., 3:]],
    "elements and ranges": lambda x: [x[0], x[1:]],
    "steps": lambda x: [x[:, ::2], x[:, 1::2]],
    "nothing": lambda x: [x[:, :0], x[:, 4:4]],
}


@fails_on_stock
def test_ir(tpu):
    ir(differentiated(lambda x: [x[0], x[1]], shape=(2, 4))).expect("""\
%0 = bf16[2,4] xla::device_data()
%1 = bf16[2,4] aten::exp(%0)
%2 = f32[2,4] xla::cast(%1)
%3 = bf16[4] xla::device_data()
%4 = f32[4] xla::cast(%3)
%5 = bf16[] prim::Constant()
%6 = bf16[] aten::expand(%5)
%7 = bf16[4] aten::expand(%6)
%8 = f32[4] xla::cast(%7)
%9 = f32[4] aten::mul(%8, %4)
%10 = bf16[4] xla::cast(%9)
%11 = bf16[4] xla::device_data()
%12 = f32[4] xla::cast(%11)
%13 = bf16[4] aten::expand(%6)
%14 = f32[4] xla::cast(%13)
%15 = f32[4] aten::mul(%14, %12)
%16 = bf16[4] xla::cast(%15)
%17 = bf16[2,4] aten::stack(%16, %10)
%18 = f32[2,4] xla::cast(%17)
%19 = f32[2,4] aten::mul(%18, %2)
%20 = bf16[2,4] xla::cast(%19)
return %20
""")


@fails_on_stock
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize(("read", "kind"), SIDE_BY_SIDE.values(), ids=SIDE_BY_SIDE.keys())
def test_side_by_side(read, kind, dtype, tpu):
    found = differentiated(read, dtype)
    text = ir(found)
    assert text.count(kind) == 1 and "update_slice" not in text and "unselect" not in text
    tpu(False)
    expected = differentiated(read, dtype)
    assert kind not in ir(expected)
    assert torch.equal(found.cpu(), expected.cpu())


@fails_on_stock
@pytest.mark.parametrize("read", ADDED.values(), ids=ADDED.keys())
def test_otherwise_they_are_added(read, tpu):
    found = differentiated(read)
    tpu(False)
    expected = differentiated(read)
    assert ir(found) == ir(expected)


@fails_on_stock
def test_among_other_gradients(tpu):
    """Of the same tensor, which come first, in between and last: none is lost."""

    def read(x):
        return [x, *halves(x), x[0], x[1], x[2], x * 2, *halves(x), x[0]]

    found = differentiated(read, f32)
    assert "aten::add" in ir(found)
    tpu(False)
    torch.testing.assert_close(found.cpu(), differentiated(read, f32).cpu(), rtol=1e-6, atol=1e-6)


@fails_on_stock
def test_parts_of_parts(tpu):
    def read(x):
        return [*halves(x[0]), *halves(x[1]), *halves(x[2])]

    found = differentiated(read)
    assert ir(found).count("aten::cat") == 3 and ir(found).count("aten::stack") == 1
    tpu(False)
    assert torch.equal(found.cpu(), differentiated(read).cpu())


def projections(x):
    """As nn.MultiheadAttention takes query, key and value from one linear."""
    apart = x.unflatten(-1, (3, -1)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    return [apart[0], apart[1], apart[2]]


@fails_on_stock
@pytest.mark.parametrize(("batch", "kinds"), [(8, (1, 3)), (3, (0, 1))], ids=["tiles", "no tiles"])
def test_projections(batch, kinds, tpu):
    """Their gradients are columns of the product's, but where these would be padded."""
    found = differentiated(projections, shape=(5, batch, 24))
    assert tuple(ir(found).count(kind) for kind in ("aten::cat", "aten::stack")) == kinds
    tpu(False)
    assert torch.equal(found.cpu(), differentiated(projections, shape=(5, batch, 24)).cpu())


@fails_on_stock
def test_of_a_parameter_and_after_a_step(tpu):
    """Gradients that were computed are not those of the next graph."""
    x = random(2, 4, dtype=f32, seed=0).to(DEVICE).requires_grad_()
    for _ in range(3):
        grad = torch.autograd.grad((x[0] * 2).sum() + x[1].square().sum(), x)[0]
        assert "aten::stack" in ir(grad)
        expected = torch.stack([torch.full((4,), 2.0), 2 * x[1].detach().cpu()])
        assert torch.equal(grad.cpu(), expected)


@fails_on_stock
def test_second_derivatives(tpu):
    def second(x):
        total = (x[..., :3].exp() * x[..., 3:]).sum()
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad((first * first).sum(), x)[0]

    on_cpu = random(4, 6, dtype=f32, seed=0).requires_grad_()
    found = second(on_cpu.detach().to(DEVICE).requires_grad_())
    assert "aten::cat" in ir(found)
    torch.testing.assert_close(found.cpu(), second(on_cpu), rtol=1e-5, atol=1e-5)


@passes_on_stock
def test_other_devices_have_stocks_graph():
    assert "aten::cat" not in ir(differentiated(halves))
