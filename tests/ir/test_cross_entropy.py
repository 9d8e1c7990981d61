"""cross_entropy as one node, and its gradient as another: patches/torch_xla/cross-entropy."""

import itertools

import pytest
import torch
import torch_xla
from ir_text import hlo, ir
from lowered import on_the_cpu
from marks import fails_on_stock
from tensors import DEVICE, bf16, f16, f32, f64, random
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

INF, NAN = float("inf"), float("nan")

REDUCTIONS = ("none", "mean", "sum")
SIZES = ((6, 1), (1, 7), (3, 5, 4), (2, 3, 2, 2, 3))
of_sizes_and_dtypes = pytest.mark.parametrize(
    ("sizes", "dtype"),
    [*((s, f32) for s in SIZES), *itertools.product(((8, 5), (2, 5, 3, 4)), (f32, f64, bf16, f16))],
    ids=str,
)


def targets(sizes, seed=1, classes=None):
    shape = (sizes[0], *sizes[2:])
    return torch.randint(0, classes or sizes[1], shape, generator=torch.Generator().manual_seed(seed))


def differentiated(device, scores, target, grad=None, wide=None, **options):
    """The loss and the scores' gradient; computed in the dtype ``wide``, if that is given."""
    scores = scores.detach().clone().to(device).requires_grad_()
    options = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    if wide is not None:
        options = {name: v.to(wide) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    loss = F.cross_entropy(scores if wide is None else scores.to(wide), target.to(device), **options)
    loss.backward(torch.ones_like(loss) if grad is None else grad.to(loss))
    return loss.detach(), scores.grad


def assert_as_the_cpu(scores, *calls):
    """Losses and gradients of calls, each a target and options; of bfloat16 and float16 as the CPU computes float32."""
    half = scores.dtype in (bf16, f16)
    found, expected = [], []
    for target, options in calls:
        found += differentiated(DEVICE, scores, target, **options)
        expected += differentiated("cpu", scores, target, wide=f32 if half else None, **options)
    tolerance = {"rtol": 1.0e-2, "atol": 1e-3} if half else {"rtol": 2e-6, "atol": 2e-7}
    for mine, other in zip(on_the_cpu(found), expected, strict=True):
        assert mine.dtype is scores.dtype
        torch.testing.assert_close(mine, other.to(mine.dtype), equal_nan=True, **tolerance)


# ---- the graph


@fails_on_stock
def test_ir():
    scores, target = random(4, 3, dtype=f32).to(DEVICE).requires_grad_(), torch.tensor([0, 2, 1, -100]).to(DEVICE)
    torch_xla.sync()
    loss = F.cross_entropy(scores, target)
    ir(loss).expect("""\
%0 = s64[4] xla::device_data()
%1 = f32[4,3] xla::device_data()
%2 = (f32[], f32[4,3], f32[3,4]) xla::cross_entropy(%1, %0)
return %2
""")
    loss.backward()
    ir(scores.grad).expect("""\
%0 = s64[4] xla::device_data()
%1 = f32[4,3] xla::device_data()
%2 = (f32[], f32[4,3], f32[3,4]) xla::cross_entropy(%1, %0)
%3 = f32[] prim::Constant()
%4 = f32[] aten::expand(%3)
%5 = (f32[4,3]) xla::cross_entropy_backward(%4, %2.1, %0, %2.2)
return %5
""")


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16), ids=str)
def test_counts_have_the_size_of_targets(dtype):
    """One comparison with all classes in the loss and one in its gradient; no sum over more than a row's classes."""
    scores, target = random(8, 16, dtype=dtype).to(DEVICE).requires_grad_(), targets((8, 16)).to(DEVICE)
    torch_xla.sync()
    loss = F.cross_entropy(scores, target)
    loss.backward()
    text = hlo(loss, scores.grad)
    assert text.count("pred[8,16] compare") == 2, text
    assert "dimensions={0,1}" not in text


@fails_on_stock
def test_bfloat16_is_rounded_once():
    """No array of scores is rounded but the gradient."""
    scores, target = random(8, 16).to(DEVICE).requires_grad_(), targets((8, 16)).to(DEVICE)
    torch_xla.sync()
    F.cross_entropy(scores, target).backward()
    assert hlo(scores.grad).count("bf16[8,16] convert") == 1


# ---- values


def of_every_reduction(target, dtype):
    """The options of a call for each reduction, with the gradient of its loss."""
    for reduction in REDUCTIONS:
        grad = random(*target.shape, dtype=dtype, seed=5) if reduction == "none" else torch.tensor(1.5, dtype=dtype)
        yield {"reduction": reduction, "grad": grad}


@of_sizes_and_dtypes
def test_as_the_cpu(sizes, dtype):
    scores, target = random(*sizes, dtype=dtype) * 3, targets(sizes)
    weighted = {"weight": (torch.arange(sizes[1]) / 2 + 0.5).to(dtype), "ignore_index": 0}
    target[0] = -100
    shown = target.clamp(min=0)
    calls = [((target, options), (shown, {**options, **weighted})) for options in of_every_reduction(target, dtype)]
    assert_as_the_cpu(scores, *itertools.chain(*calls))


@fails_on_stock
@pytest.mark.parametrize("dtype", (f32, bf16), ids=str)
def test_smoothed_labels_are_in_the_same_node(dtype):
    scores, target = random(8, 16, dtype=dtype).to(DEVICE).requires_grad_(), targets((8, 16)).to(DEVICE)
    torch_xla.sync()
    loss = F.cross_entropy(scores, target, label_smoothing=0.1)
    loss.backward()
    text = hlo(loss, scores.grad)
    assert text.count("pred[8,16] compare") == 2, text
    assert "dimensions={0,1}" not in text
    assert text.count("bf16[8,16] convert") == (dtype == bf16)


@of_sizes_and_dtypes
def test_smoothed_labels_are_as_the_cpu(sizes, dtype):
    scores, target = random(*sizes, dtype=dtype) * 3, targets(sizes)
    ignored = target.clone()
    ignored[0] = -100
    cases = ((target, 0.1), (ignored, 0.3), (ignored, 1.0))  # how much is in the graph's key
    each = itertools.product(of_every_reduction(target, dtype), cases)
    assert_as_the_cpu(scores, *((of, {**options, "label_smoothing": much}) for options, (of, much) in each))


def test_smoothed_labels_of_large_scores():
    """In float32 of scores near 1e4: what is lost is what the scores themselves have lost."""
    scores, target = random(64, 32, dtype=f32) + 1e4, targets((64, 32))
    found, grad = on_the_cpu(differentiated(DEVICE, scores, target, label_smoothing=0.1))
    expected, of_scores = differentiated("cpu", scores, target, wide=f64, label_smoothing=0.1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad, of_scores, rtol=1e-5, atol=1e-8)


def test_smoothing_of_weighted_classes_is_torchs():
    scores, target = random(4, 3, dtype=f32), torch.tensor([0, 2, 1, 1])
    weight = torch.tensor([0.5, 1.0, 2.0])
    assert_as_the_cpu(scores, (target, {"label_smoothing": 0.1, "weight": weight, "reduction": "sum"}))


def test_gradients_of_the_gradient_of_smoothed_labels():
    def second(device):
        leaf = random(4, 3, dtype=f32).to(device).requires_grad_()
        loss = F.cross_entropy(leaf, torch.tensor([0, 2, 1, 1]).to(device), label_smoothing=0.2)
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0].cpu()

    torch.testing.assert_close(second(DEVICE), second("cpu"))


def test_every_target_is_ignored():
    weighted = {"ignore_index": 2, "weight": torch.ones(3)}
    calls = ((torch.full((4,), -100), {}), (torch.full((4,), 2), weighted))
    each = itertools.product(REDUCTIONS, calls)
    assert_as_the_cpu(random(4, 3, dtype=f32), *((t, {**options, "reduction": r}) for r, (t, options) in each))


def test_infinite_scores():
    """Of a class that is no target the gradient is 0; of a target the loss is infinite."""
    scores = random(5, 4, dtype=f32)
    scores[0, 1] = scores[1, :2] = -INF
    target = torch.tensor([0, 3, 1, 2, 0])
    calls = ((target, {}), (target.clamp(max=1), {}), (target, {"label_smoothing": 0.1}))
    each = itertools.product(REDUCTIONS, calls)
    assert_as_the_cpu(scores, *((t, {**options, "reduction": r}) for r, (t, options) in each))
    scores[2, 0], scores[3], scores[4] = INF, -INF, NAN
    assert_as_the_cpu(scores, *((target, {"reduction": "none", "label_smoothing": much}) for much in (0.0, 0.1)))


def test_an_ignored_class_with_infinite_scores():
    scores = random(4, 3, dtype=f32)
    scores[:, 0] = -INF
    target = torch.tensor([0, 1, 2, 0])
    assert_as_the_cpu(scores, *((target, {"reduction": r, "ignore_index": 0}) for r in REDUCTIONS))


def test_large_scores_lose_nothing():
    """A loss of 1e-4 beside scores of 1e4, which the difference of a logarithm and a score would not have."""
    scores = torch.tensor([[1e4, 1e4 - 9, 0.0], [-1e4, -1e4 - 9, -2e4]])
    assert_as_the_cpu(scores, (torch.tensor([0, 0]), {"reduction": "none"}))


def test_targets_that_there_are_not():
    """What the CPU refuses counts as ignored, as on stock wheels."""
    scores, weight = random(4, 3, dtype=f32), torch.tensor([1.0, 2.0, 3.0])
    beyond, ignored = torch.tensor([0, 3, -1, 2**32 + 1]), torch.tensor([0, -100, -100, -100])
    for options in ({}, {"weight": weight}, {"reduction": "none"}, {"reduction": "sum"}):
        found = on_the_cpu(differentiated(DEVICE, scores, beyond, **options))
        for mine, other in zip(found, differentiated("cpu", scores, ignored, **options), strict=True):
            torch.testing.assert_close(mine, other)


@fails_on_stock
def test_bfloat16_is_as_exact_as_it_can_be():
    """The loss of bfloat16 scores is the float64 one, rounded."""
    scores, target = random(64, 1000) * 4, targets((64, 1000))
    found, grad = on_the_cpu(differentiated(DEVICE, scores, target, reduction="sum"))
    exact, exact_grad = differentiated("cpu", scores, target, wide=f64, reduction="sum")
    assert found == exact.to(bf16)
    assert torch.equal(grad, exact_grad)


@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_second_derivative(reduction):
    def second(device):
        scores = random(4, 3, dtype=f32).to(device).requires_grad_()
        target = torch.tensor([0, 2, 1, -100]).to(device)
        loss = F.cross_entropy(scores * scores, target, reduction=reduction).sum()
        (grad,) = torch.autograd.grad(loss, scores, create_graph=True)
        (grad * grad).sum().backward()
        return grad.detach().cpu(), scores.grad.cpu()

    for mine, other in zip(second(DEVICE), second("cpu"), strict=True):
        torch.testing.assert_close(mine, other)


def test_scores_that_are_written_to():
    """Before the backward pass, as the CPU takes it: what is saved is not the scores."""

    def grad(device):
        leaf = random(4, 3, dtype=f32).to(device).requires_grad_()
        scores = leaf * 2
        loss = F.cross_entropy(scores, torch.tensor([0, 2, 1, 1]).to(device))
        scores.zero_()
        loss.backward()
        return leaf.grad.cpu()

    torch.testing.assert_close(grad(DEVICE), grad("cpu"))


def test_one_graph_serves_two_ignored_classes():
    """ignore_index is in the graph's key."""
    scores, target = random(4, 3, dtype=f32), torch.tensor([0, 1, 2, 0])
    for ignored in (0, 1, 2, -100):
        assert_as_the_cpu(scores, (target, {"ignore_index": ignored}))


def test_other_calls_are_torchs():
    scores, target = random(4, 3, dtype=f32), torch.tensor([0, 2, 1, -100])
    of_classes = torch.softmax(random(4, 3, dtype=f32, seed=3), 1)
    assert_as_the_cpu(scores, (target, {"label_smoothing": -0.1}), (of_classes, {}))
    assert_as_the_cpu(scores[0], (torch.tensor(1), {}))


@pytest.mark.since("2.9", "targets of a wrong shape that do not end the process")
def test_targets_of_a_wrong_shape():
    scores, target = random(4, 3, dtype=f32), torch.tensor([0, 2, 1, -100])
    for wrong in (target[:3], target.unsqueeze(1)):
        with pytest.raises((RuntimeError, ValueError)):
            F.cross_entropy(scores.to(DEVICE), wrong.to(DEVICE))


def test_an_empty_batch():
    for reduction in REDUCTIONS:
        found = F.cross_entropy(
            torch.zeros(0, 3).to(DEVICE), torch.zeros(0, dtype=torch.int64).to(DEVICE), reduction=reduction
        )
        expected = F.cross_entropy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), reduction=reduction)
        torch.testing.assert_close(found.cpu(), expected, equal_nan=True)


def test_under_transforms():
    """torch.func's, forward-mode derivatives and dispatch modes see torch's composition."""
    scores, target = random(4, 3, dtype=f32), torch.tensor([0, 2, 1, 1])
    on_xla = scores.to(DEVICE), target.to(DEVICE)
    expected = differentiated("cpu", scores, target)[1]
    torch.testing.assert_close(torch.func.grad(F.cross_entropy)(*on_xla).cpu(), expected)
    losses = torch.func.vmap(F.cross_entropy)(on_xla[0].unsqueeze(1), on_xla[1].unsqueeze(1))
    torch.testing.assert_close(losses.cpu(), F.cross_entropy(scores, target, reduction="none"))
    _, tangent = torch.func.jvp(lambda s: F.cross_entropy(s, on_xla[1]), on_xla[:1], (torch.ones(4, 3).to(DEVICE),))
    assert abs(tangent.item()) < 1e-6


def test_checkpointed_and_under_autocast():
    def step(device, kept):
        leaf = random(4, 8, dtype=f32).to(device).requires_grad_()
        weight, target = random(8, 3, dtype=f32, seed=2).to(device), torch.tensor([0, 2, 1, 1]).to(device)

        def loss(x):
            return F.cross_entropy(x @ weight, target)

        with torch.autocast(device, bf16):
            result = loss(leaf) if kept else checkpoint(loss, leaf, use_reentrant=False)
        assert result.dtype == f32
        result.backward()
        return leaf.grad.cpu()

    assert torch.equal(step("xla", kept=True), step("xla", kept=False))
    torch.testing.assert_close(step("xla", kept=True), step("cpu", kept=True), rtol=2e-2, atol=1e-2)


def test_compiled():
    def loss(scores, target):
        return F.cross_entropy(scores, target)

    scores, target = random(4, 3, dtype=f32), torch.tensor([0, 2, 1, -100])
    found = torch.compile(loss, backend="openxla")(scores.to(DEVICE), target.to(DEVICE))
    torch.testing.assert_close(found.cpu(), F.cross_entropy(scores, target))
