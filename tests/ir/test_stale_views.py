"""Views of tensors that were written through another tensor of their memory: patches/torch/stale-views."""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE

ALIASES = {
    "detach": torch.Tensor.detach,
    "data": lambda a: a.data,
    "a view": lambda a: a.view(4, 2),
    "a row": lambda a: a[0],
}
VIEWS = {
    "view": lambda a: a.view(-1),
    "unsqueeze": lambda a: a.unsqueeze(0),
    "transpose": lambda a: a.t(),
    "slice": lambda a: a[1:],
    "split": lambda a: a.split(1)[0],
    "detach": torch.Tensor.detach,
}


def computed(device=DEVICE):
    a = torch.arange(8.0).view(2, 4).to(device)
    torch_xla.sync()
    return a


def written_and_viewed(alias, views, device):
    a = computed(device)
    alias(a).add_(1)
    results = []
    for view in views:
        results.append(view(a))
        torch_xla.sync()
    return [t.tolist() for t in (*results, a)]


@fails_on_stock
@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
def test_two_views_over_the_end_of_a_step(alias):
    views = [VIEWS["view"], VIEWS["unsqueeze"]]
    assert written_and_viewed(alias, views, DEVICE) == written_and_viewed(alias, views, "cpu")


@pytest.mark.parametrize(
    "view",
    [pytest.param(v, marks=passes_on_stock if n == "detach" else fails_on_stock, id=n) for n, v in VIEWS.items()],
)
def test_each_view(view):
    views = [VIEWS["view"], view]
    assert written_and_viewed(torch.Tensor.detach, views, DEVICE) == written_and_viewed(
        torch.Tensor.detach, views, "cpu"
    )


@fails_on_stock
def test_a_parameter_that_is_changed_by_hand():
    """A step of SGD on .data, and a tied weight that is made anew of a view in each step."""
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(4, 3).to(device))
        x = torch.arange(12.0).view(4, 3).to(device)
        tied = []
        for _ in range(3):
            (x @ weight.t()).square().sum().backward()
            weight.data.sub_(weight.grad, alpha=1e-4)
            weight.grad = None
            tied.append(weight.view(-1))
            torch_xla.sync()
        results.append([tied[-1].detach().cpu(), weight.detach().cpu()])
    torch.testing.assert_close(*results)


@fails_on_stock
def test_the_ir():
    """The second view is of what the first step has written."""
    a = computed()
    a.detach().add_(1)
    view = a.view(-1)
    ir(view).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] prim::Constant()
%2 = f32[2,4] xla::device_data()
%3 = f32[2,4] aten::add(%2, %1, %0)
%4 = f32[8] aten::view(%3)
return %4
""")
    torch_xla.sync()
    view = a.t()
    torch_xla.sync()
    assert view.tolist() == [[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]]


@passes_on_stock
def test_a_view_of_a_tensor_that_is_up_to_date():
    a = computed()
    a.add_(1)
    ir(a.t()).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] prim::Constant()
%2 = f32[2,4] xla::device_data()
%3 = f32[2,4] aten::add(%2, %1, %0)
%4 = f32[4,2] aten::permute(%3)
return %4
""")


@passes_on_stock
@pytest.mark.parametrize("view", [torch.Tensor.view_as, torch.Tensor.expand_as, torch.Tensor.reshape_as])
def test_a_view_in_the_shape_of_the_tensor_itself(view):
    """The sizes that these ask for are those of a value that is replaced before they are read."""
    for i in range(5):
        a = computed()
        a.detach().add_(i)
        b = view(a, a)
        assert (a.shape, b.tolist()) == (b.shape, torch.arange(i, i + 8.0).view(2, 4).tolist())


def _write_row(x):
    x.expand(2, 3)[1] = 5


def _write_by_mask(x):
    x.expand(1, 3)[(x > 0)[None]] = 1


def _write_booleans(x):
    mask = x > 0
    mask.expand(1, 3)[:, 1:].logical_not_()
    x.copy_(mask)


# What is written, and to which views by expand(): -inf, NaN and 1e8 are lost in differences.
EXPANDED = {
    "fill": lambda x: x.expand(2, 3).fill_(1),
    "minus infinity": lambda x: x.expand(2, 3).masked_fill_(x > 0, -torch.inf),
    "nan is kept": lambda x: x.div_(x.isfinite()).expand(2, 3)[0, 0].fill_(1),
    "a row": _write_row,
    "a product": lambda x: x.expand(2, 3)[0].mul_(2),
    "one row": lambda x: x.expand(1, 3).fill_(1),
    "by a mask": _write_by_mask,
    "the same sizes": lambda x: x.expand_as(x).copy_(torch.ones(1).to(x.device)),
    "scattered": lambda x: x.expand(1, 3).scatter_(1, torch.tensor([[0]]).to(x.device), 9.0),
    "in two dimensions": lambda x: x[:1].unsqueeze(0).expand(2, 3)[1, 2].fill_(7),
    "booleans": _write_booleans,
}


@fails_on_stock
@pytest.mark.parametrize("write", EXPANDED.values(), ids=EXPANDED)
def test_what_is_written_to_an_expanded_view(write):
    results = []
    for device in ("cpu", DEVICE):
        x = torch.tensor([1e8, -torch.inf, 3.0]).to(device)
        write(x)
        results.append(x.cpu())
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


@fails_on_stock
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.complex64])
def test_dtypes_of_what_is_written_to_an_expanded_view(dtype):
    results = []
    for device in ("cpu", DEVICE):
        x = (torch.arange(6).view(2, 1, 3) % 2).to(dtype).to(device)
        x.expand(2, 2, 3).fill_(1)
        results.append(x.cpu())
    torch.testing.assert_close(*results, rtol=0, atol=0)


@fails_on_stock
def test_an_expanded_mask_of_a_batch_of_one_is_written_in_a_step():
    """A causal mask with which a first token of padding is masked out, and the gradient through what it masks."""
    results = []
    for device in ("cpu", DEVICE):
        scores = torch.linspace(-1, 1, 16).view(1, 4, 4).to(device).requires_grad_()
        mask = torch.full((4, 4), -torch.inf).triu(1).to(device)
        batch = mask[None].expand(1, -1, -1)
        batch[:, :, 0] = -torch.inf
        batch[:, 0, 0] = 0
        (scores + batch).softmax(-1).square().sum().backward()
        results.append([mask.cpu(), scores.grad.cpu()])
    torch.testing.assert_close(*results)


@passes_on_stock
def test_the_ir_of_an_expanded_view_that_is_not_written():
    ir(computed()[:1].expand(3, 4)).expect("""\
%0 = f32[2,4] xla::device_data()
%1 = f32[1,4] xla::select(%0)
%2 = f32[3,4] aten::expand(%1)
return %2
""")


@pytest.mark.parametrize("last", (pytest.param(6, marks=fails_on_stock), 5, 8))
def test_a_formula_that_holds_the_sizes_of_a_gradient(last):
    """irfft's gradient is a tensor whose slice was doubled in place; rfft's makes a tensor of it, and reads its sizes.

    Stock reads memory that is free by then, and raises "The size of tensor a (6) must match the size of tensor b (4)".
    """
    gradients = []
    for device in ("cpu", DEVICE):
        x = torch.arange(24.0).view(4, 6).to(device).requires_grad_()
        result = torch.fft.irfft(torch.fft.rfft(x), n=last)
        result.mul(torch.arange(1.0, last + 1).to(device)).sum().backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_sizes_after_a_view_in_place():
    x = torch.ones(2, 1, 3, device=DEVICE)
    for change, expected in (
        (lambda: x.squeeze_(1), (2, 3)),
        (x.t_, (3, 2)),
        (lambda: x.unsqueeze_(0), (1, 3, 2)),
    ):
        change()
        assert tuple(x.shape) == expected
        x.add_(1)
        assert tuple(x.shape) == tuple(x.cpu().shape) == expected
    y = torch.ones(2, 3, device=DEVICE)
    assert tuple(y.resize_(4, 4).shape) == tuple((y + 1).shape) == (4, 4)
