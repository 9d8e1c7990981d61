"""cross-entropy, as the TPU compiler sees its programs."""

import pytest
import torch
from device_data import data
from torch.nn import functional as F

fails_on_stock = pytest.mark.fails_on_stock

TOKENS, CLASSES, WIDTH = 2048, 32000, 512


def by_torch(scores, target):
    """What stock computes."""
    return F.nll_loss(F.log_softmax(scores, 1), target)


def step(loss, tokens=TOKENS, classes=CLASSES, dtype=torch.float32):
    """A tied embedding, logits in float32 and their loss; with gradients."""
    x, embedding = data(tokens, WIDTH).requires_grad_(), data(classes, WIDTH).requires_grad_()
    target = data(tokens, dtype=torch.int64)
    result = loss((x @ embedding.t()).to(dtype), target)
    result.backward()
    return [result, x.grad, embedding.grad]


@fails_on_stock
def test_a_language_models_loss(tpu_hlo, topology):
    stock, found = (tpu_hlo(step(loss), topology) for loss in (by_torch, F.cross_entropy))
    assert found.estimated_cycles < 0.8 * stock.estimated_cycles
    assert found.memory["temp"] <= 1.001 * stock.memory["temp"]


@pytest.mark.parametrize(("tokens", "classes"), [(1, 32000), (64, 10), (256, 1000), (1024, 50257)])
def test_no_size_takes_more(tpu_hlo, tokens, classes):
    for dtype in (torch.float32, torch.bfloat16):
        sizes = {"tokens": tokens, "classes": classes, "dtype": dtype}
        stock, found = (tpu_hlo(step(loss, **sizes)) for loss in (by_torch, F.cross_entropy))
        assert found.estimated_cycles <= 1.01 * stock.estimated_cycles, sizes
        assert found.memory["temp"] <= 1.01 * stock.memory["temp"] + 4096, sizes
