"""contiguous(), reshape() and flatten() of views: patches/torch/no-hidden-alias."""

import random

import pytest
import torch
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE


def numbers(device=DEVICE):
    return torch.arange(24).reshape(4, 6).to(device)


@fails_on_stock
def test_masking_shifted_labels_leaves_the_ids():
    ids = numbers()
    labels = ids[:, 1:].contiguous()
    labels[labels == 5] = -100
    ir(ids).expect("""\
%0 = s64[4,6] xla::device_data()
return %0
""")
    assert labels.cpu()[0].tolist() == [1, 2, 3, 4, -100]


@passes_on_stock
def test_the_copy_is_no_node():
    x = numbers()
    ir(x.t().contiguous(), x.t().reshape(-1), x.narrow(1, 1, 5).flatten()).expect("""\
%0 = s64[4,6] xla::device_data()
%1 = s64[6,4] aten::permute(%0)
%2 = s64[6,4] aten::permute(%0)
%3 = s64[24] aten::view(%2)
%4 = s64[4,5] xla::select(%0)
%5 = s64[20] aten::view(%4)
return %1, %3, %5
""")


COPIES = {
    "slice.contiguous": lambda t: t[:, 1:].contiguous(),
    "transpose.contiguous": lambda t: t.t().contiguous(),
    "slice.transpose.contiguous": lambda t: t[:, 1:].t()[1:].contiguous(),
    "expand.contiguous": lambda t: t.expand(2, 4, 6).contiguous(),
    "select.contiguous": lambda t: t.select(1, 0).contiguous(),
    "diagonal.contiguous": lambda t: t.diagonal().contiguous(),
    "split.contiguous": lambda t: t.split(2, 1)[1].contiguous(),
    "unfold.contiguous": lambda t: t.unfold(1, 2, 1).contiguous(),
    "transpose.reshape": lambda t: t.t().reshape(-1),
    "transpose.reshape_as": lambda t: t.t().reshape_as(t),
    "expand.reshape": lambda t: t.expand(2, 4, 6).reshape(8, 6),
    "transpose.flatten": lambda t: t.t().flatten(),
    "slice.ravel": lambda t: t[:, 1:].ravel(),
    "chunk.flatten": lambda t: t.chunk(3, 1)[1].flatten(),
}
VIEWS = {
    "contiguous": lambda t: t.contiguous(),
    "rows.contiguous": lambda t: t[1:3].contiguous(),
    "view.contiguous": lambda t: t.view(2, 12).contiguous(),
    "twice transposed.contiguous": lambda t: t.t().t().contiguous(),
    "unsqueeze.contiguous": lambda t: t.unsqueeze(1).contiguous(),
    "rows.reshape": lambda t: t[1:3].reshape(-1),
    "reshape": lambda t: t.reshape(3, 8),
    "flatten": lambda t: t.flatten(),
    "slice.unsqueezing reshape": lambda t: t[:, 1:].reshape(4, 1, 5),
    "transpose.splitting reshape": lambda t: t.t().reshape(3, 2, 4),
}


def written(function, device, number=77):
    """What the base holds after something was written to what the function returned, and that."""
    base = numbers(device)
    result = function(base)
    result.fill_(number)
    return base.cpu().tolist(), result.cpu().tolist()


@fails_on_stock
@pytest.mark.parametrize("name", COPIES)
def test_copies(name):
    assert written(COPIES[name], DEVICE) == written(COPIES[name], "cpu")


@passes_on_stock
@pytest.mark.parametrize("name", VIEWS)
def test_views_stay_views(name):
    assert written(VIEWS[name], DEVICE) == written(VIEWS[name], "cpu")


@fails_on_stock
def test_is_contiguous():
    x = numbers()
    assert x.is_contiguous() and x[1:].is_contiguous() and x.t().t().is_contiguous()
    assert not x.t().is_contiguous() and not x[:, 1:].is_contiguous() and not x.t().detach().is_contiguous()


@passes_on_stock
def test_strides_and_what_view_takes_stay():
    x = numbers()
    assert x.t().stride() == (4, 1)
    assert x.t().view(-1).cpu().tolist() == numbers("cpu").t().reshape(-1).tolist()


@fails_on_stock
def test_gradient_through_a_copy():
    def gradient(device):
        leaf = torch.arange(12.0).reshape(3, 4).to(device).requires_grad_()
        copy = (leaf * 2)[:, 1:].contiguous()
        with torch.no_grad():
            copy.mul_(3)
        (leaf * 2).t().reshape(-1).square().sum().backward()
        return leaf.grad.cpu(), copy.detach().cpu()

    for found, expected in zip(gradient(DEVICE), gradient("cpu"), strict=True):
        assert torch.equal(found, expected)
    base = torch.arange(12.0).reshape(3, 4).to(DEVICE)
    twice = base * 2
    twice.t().contiguous().mul_(0)
    assert torch.equal(twice.cpu(), base.cpu() * 2)


@fails_on_stock
def test_in_inference_mode():
    with torch.inference_mode():
        assert written(COPIES["slice.contiguous"], DEVICE) == written(COPIES["slice.contiguous"], "cpu")
        assert written(COPIES["transpose.flatten"], DEVICE) == written(COPIES["transpose.flatten"], "cpu")


VIEW_KINDS = ["transpose", "permute", "slice", "step", "select", "unbind", "unsqueeze", "unflatten", "expand"]
VIEW_KINDS += ["diagonal", "chunk"]


def random_view(generator, t):  # noqa: C901, PLR0911
    """One view of t, the same for the same state of the generator."""
    dim = generator.randrange(t.dim())
    other = generator.randrange(t.dim())
    kind = generator.choice(VIEW_KINDS)
    if kind == "transpose":
        return t.transpose(dim, other)
    if kind == "permute":
        return t.permute(generator.sample(range(t.dim()), t.dim()))
    if kind == "unflatten" and t.size(dim) % 2 == 0:
        return t.unflatten(dim, (2, -1))
    if kind == "unbind" and t.dim() > 1:
        return t.unbind(dim)[-1]
    if kind == "slice" and t.size(dim) > 1:
        return t.narrow(dim, 1, t.size(dim) - 1)
    if kind == "step":
        return t[(slice(None),) * dim + (slice(None, None, 2),)]
    if kind == "select" and t.dim() > 1:
        return t.select(dim, t.size(dim) - 1)
    if kind == "unsqueeze":
        return t.unsqueeze(dim)
    if kind == "expand":
        return t.unsqueeze(0).expand(2, *t.shape)
    if kind == "diagonal" and dim != other and t.size(dim) == t.size(other):
        return t.diagonal(0, dim, other)
    return t.chunk(2, dim)[0]


def random_program(seed, device):
    """Views of a base, made contiguous or reshaped, written to: what the base and the result hold."""
    generator = random.Random(seed)
    base = torch.arange(4 * 6 * 4).reshape(4, 6, 4).to(device)
    t = base
    for _ in range(generator.randrange(1, 5)):
        t = random_view(generator, t)
    shape = generator.choice([(-1,), (t.size(0), -1), (-1, t.size(-1)), tuple(t.shape)])
    t = generator.choice([t.contiguous, lambda: t.reshape(shape), t.flatten])()
    if t.numel() and t.is_contiguous():
        t.fill_(77) if generator.random() < 0.5 else t[..., :1].add_(100)
    return base.cpu(), t.cpu()


@fails_on_stock
def test_random_programs():
    for seed in range(60):
        for found, expected in zip(random_program(seed, DEVICE), random_program(seed, "cpu"), strict=True):
            assert torch.equal(found, expected), f"seed {seed}"
