"""grouped_mm on XLA: patches/torch_xla/grouped-products. On stock wheels its calls end the process."""

import pytest
import torch
from ir_text import ir
from marks import fails_on_stock
from other_process import forked
from tensors import DEVICE, bf16, f16, f32
from torch_xla.debug import metrics

ENDS = [0, 3, 3, 8]

ends_the_process_on_stock = pytest.mark.ends_the_process_on_stock("2.9")


def operands(kind, dtype=f32):
    """Two operands of 2 or 3 dimensions, as "2 3", with groups of no, 3, no and 5 rows."""
    shapes = {
        "2 3": ((8, 5), (4, 5, 6)),
        "3 2": ((4, 6, 5), (5, 8)),
        "2 2": ((6, 8), (8, 5)),
        "3 3": ((4, 3, 5), (4, 5, 6)),
    }
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes[kind]]


def expected(kind, a, b):
    """The products of the groups, one by one, in float64."""
    a, b, starts = a.double(), b.double(), [0, *ENDS[:-1]]
    if kind == "3 3":
        return a @ b
    if kind == "2 3":
        return torch.cat([a[i:j] @ w for i, j, w in zip(starts, ENDS, b, strict=True)])
    if kind == "3 2":
        return torch.cat([w @ b[:, i:j] for i, j, w in zip(starts, ENDS, a, strict=True)], 1)
    return torch.stack([a[:, i:j] @ b[i:j] for i, j in zip(starts, ENDS, strict=True)])


def ends_of(kind):
    return None if kind == "3 3" else torch.tensor(ENDS, dtype=torch.int32).to(DEVICE)


@ends_the_process_on_stock
@fails_on_stock
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("kind", ["2 3", "3 2", "2 2", "3 3"])
def test_products_of_groups(kind, dtype):
    a, b = operands(kind, dtype)
    found = torch._grouped_mm(a.to(DEVICE), b.to(DEVICE), offs=ends_of(kind)).cpu()
    wanted = expected(kind, a, b)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@ends_the_process_on_stock
@fails_on_stock
def test_gradients():
    """Of tokens and experts, as transformers has them: the experts transposed."""
    found = {}
    for device in ("cpu", DEVICE):
        a, b = (t.to(device).requires_grad_() for t in operands("2 3"))
        offs = torch.tensor(ENDS, dtype=torch.int32).to(device)
        if device == "cpu":
            out = torch.cat([a[i:j] @ w for i, j, w in zip([0, *ENDS[:-1]], ENDS, b, strict=True)])
        else:
            swapped = b.transpose(-2, -1).contiguous().transpose(-2, -1)
            out = torch._grouped_mm(a, swapped, offs=offs)
        out.square().sum().backward()
        found[str(device)] = [out.detach().cpu(), a.grad.cpu(), b.grad.cpu()]
    torch.testing.assert_close(*found.values())


@ends_the_process_on_stock
@fails_on_stock
def test_rows_of_other_groups_do_not_reach_a_product():
    a, b = operands("2 3")
    b[0] = float("nan")
    found = torch._grouped_mm(a.to(DEVICE), b.to(DEVICE), offs=ends_of("2 3"))
    a[0] = float("inf")
    a, c = a.t().contiguous(), torch.ones(8, 2)
    of_columns = torch._grouped_mm(a.to(DEVICE), c.to(DEVICE), offs=ends_of("2 2"))
    assert found.isfinite().all()
    assert of_columns[[0, 2, 3]].isfinite().all() and (of_columns[[0, 2]] == 0).all()


@ends_the_process_on_stock
@fails_on_stock
def test_nothing_leaves_the_device_and_other_groups_are_the_same_graph():
    a, b = (t.to(DEVICE) for t in operands("2 3"))
    torch._grouped_mm(a, b, offs=ends_of("2 3")).cpu()
    metrics.clear_all()
    other = torch.tensor([1, 2, 4, 8], dtype=torch.int32).to(DEVICE)
    torch._grouped_mm(a, b, offs=other).cpu()
    assert metrics.metric_data("CompileTime") is None
    assert metrics.executed_fallback_ops() == []


@ends_the_process_on_stock
@fails_on_stock
@pytest.mark.parametrize(
    ("shapes", "offs", "said"),
    [
        (((8, 5), (4, 5, 6)), None, "expected offs"),
        (((4, 3, 5), (4, 5, 6)), ENDS, "expected offs"),
        (((8,), (4, 5, 6)), ENDS, "2 or 3 dimensions"),
    ],
)
def test_what_is_refused(shapes, offs, said):
    a, b = (torch.ones(shape).to(DEVICE) for shape in shapes)
    with pytest.raises(RuntimeError, match=said):
        torch._grouped_mm(a, b, offs=offs and torch.tensor(offs, dtype=torch.int32).to(DEVICE))


@ends_the_process_on_stock
@fails_on_stock
def test_groups_are_one_product_without_casts():
    a, b = (t.to(DEVICE) for t in operands("2 3", bf16))
    text = ir(torch._grouped_mm(a, b, offs=ends_of("2 3")))
    assert text.count("aten::matmul(") == 1 and "xla::cast" not in text and "f32[" not in text


PROGRAM = """
import torch, torch_xla
x, w = torch.ones(2, 3).to("xla"), torch.ones(1, 3, 4).to("xla")
print(torch._grouped_mm(x, w, offs=torch.tensor([2], dtype=torch.int32).to("xla")).sum().item())
"""


@fails_on_stock
def test_the_process_lives_on():
    assert forked("-c", PROGRAM).stdout == "24.0\n"
