"""cross-entropy, as the TPU compiler sees its programs."""

import pytest
import torch
from device_data import data
from marks import fails_on_stock
from torch.nn import functional as F

TOKENS, CLASSES, WIDTH = 2048, 32000, 512
SMOOTHING = 0.1


def by_torch(scores, target):
    """What stock computes."""
    return F.nll_loss(F.log_softmax(scores, 1), target)


def smoothed(scores, target):
    return F.cross_entropy(scores, target, label_smoothing=SMOOTHING)


def smoothed_by_torch(scores, target):
    logarithms = F.log_softmax(scores, 1)
    of_all = logarithms.sum(1).neg().masked_fill(target == -100, 0).sum() / (target != -100).sum()
    return (1 - SMOOTHING) * F.nll_loss(logarithms, target) + SMOOTHING / scores.shape[1] * of_all


LOSSES = {"plain": (by_torch, F.cross_entropy), "smoothed": (smoothed_by_torch, smoothed)}
"""As stock computes them, and as castoff does."""


def step(loss, tokens=TOKENS, classes=CLASSES, dtype=torch.float32):
    """A tied embedding, logits in float32 and their loss; with gradients."""
    x, embedding = data(tokens, WIDTH).requires_grad_(), data(classes, WIDTH).requires_grad_()
    target = data(tokens, dtype=torch.int64)
    result = loss((x @ embedding.t()).to(dtype), target)
    result.backward()
    return [result, x.grad, embedding.grad]


@fails_on_stock
@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
def test_a_language_models_loss(tpu_hlo, topology, losses):
    stock, found = (tpu_hlo(step(loss), topology) for loss in losses)
    assert found.estimated_cycles < 0.8 * stock.estimated_cycles
    assert found.memory["temp"] <= 1.001 * stock.memory["temp"]


@pytest.mark.parametrize(("tokens", "classes"), [(1, 32000), (64, 10), (256, 1000), (1024, 50257)])
@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
def test_no_size_takes_more(tpu_hlo, tokens, classes, losses):
    for dtype in (torch.float32, torch.bfloat16):
        sizes = {"tokens": tokens, "classes": classes, "dtype": dtype}
        stock, found = (tpu_hlo(step(loss, **sizes)) for loss in losses)
        assert found.estimated_cycles <= 1.01 * stock.estimated_cycles, sizes
        assert found.memory["temp"] <= 1.01 * stock.memory["temp"] + 4096, sizes
