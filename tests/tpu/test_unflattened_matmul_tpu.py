"""unflattened-matmul, as the TPU compiler sees its programs."""

import pytest
import torch
import torch.nn.functional as F
from device_data import data

BATCH, TOKENS, HEADS, WIDTH = 4, 1024, 16, 1024


def step():
    """Attention by products of its own between two linears, and its gradients, pending."""
    x, inward, outward = leaves = [
        data(*shape).requires_grad_() for shape in ((BATCH, TOKENS, WIDTH), (3 * WIDTH, WIDTH), (WIDTH, WIDTH))
    ]
    heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in F.linear(x, inward).chunk(3, -1))
    q, k, v = heads
    result = F.linear(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2), outward)
    return [result.detach(), *torch.autograd.grad(result, leaves, data(*result.shape))]


@pytest.mark.fails_on_stock
def test_attention_between_linears(tpu_hlo):
    """On v6e fewer cycles than with products of flattened tensors, which transpose what attention takes."""
    from torch_xla._native_attention import trace_for_tpu

    unflattened = tpu_hlo(step(), "v6e:2x2")
    trace_for_tpu(False)
    flattened = tpu_hlo(step(), "v6e:2x2")
    assert unflattened.estimated_cycles < flattened.estimated_cycles


def attention(form):
    """Self-attention whose query, key and value are of one product, with its gradients."""
    x, weight = (data(*sizes).requires_grad_() for sizes in ((8, 256, 256), (768, 256)))
    y = F.linear(x, weight)
    if form == "unbind":
        parts = y.reshape(8, 256, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
    else:
        parts = (part.view(8, 256, 4, 64).transpose(1, 2) for part in y.chunk(3, -1))
    result = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(8, 256, 256)
    return [result.detach(), *torch.autograd.grad(result, (x, weight), data(8, 256, 256))]


@pytest.mark.fails_on_stock
def test_parts_that_are_unbound_cost_what_ranges_of_columns_cost(tpu_hlo):
    unbound, ranges = (tpu_hlo(attention(form), "v6e:2x2").estimated_cycles for form in ("unbind", "chunk"))
    assert unbound < 1.01 * ranges


def relative_positions():
    """Attention by products of its own over windows of 49 pixels, with a bias for each head, and its gradients."""
    shapes = ((64, 6, 49, 32),) * 3, (6, 49, 49)
    q, k, v, bias = leaves = [data(*shape).requires_grad_() for shape in (*shapes[0], shapes[1])]
    result = (q @ k.mT + bias).softmax(-1) @ v
    return [result.detach(), *torch.autograd.grad(result, leaves, data(*result.shape))]


@pytest.mark.fails_on_stock
@pytest.mark.parametrize(("generation", "most"), [("v5e:2x2", 0.9), ("v6e:2x2", 0.98)])
def test_scores_with_a_bias_for_each_head(tpu_hlo, generation, most):
    """The bias is not written to memory for each batch."""
    from torch_xla._native_attention import trace_for_tpu

    unflattened = tpu_hlo(relative_positions(), generation)
    trace_for_tpu(False)
    flattened = tpu_hlo(relative_positions(), generation)
    assert unflattened.estimated_cycles < most * flattened.estimated_cycles
