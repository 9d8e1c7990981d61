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


def rotated(heads, turned):
    return heads * turned + torch.cat((-heads[..., 64:], heads[..., :64]), -1) * turned


def eager():
    """Attention of a Llama by products of its own, four keys for eight queries, and its gradients."""
    x, turned = data(4, 512, 1024).requires_grad_(), data(1, 1, 512, 128)
    weights = [data(size, 1024).requires_grad_() for size in (1024, 512, 512)]
    q, k, v = (F.linear(x, w).unflatten(-1, (-1, 128)).transpose(1, 2) for w in weights)
    q, k, v = rotated(q, turned), *(t.repeat_interleave(2, 1) for t in (rotated(k, turned), v))
    weighted = (q @ k.mT * 0.088 + data(1, 1, 512, 512)).softmax(-1, dtype=torch.float32).to(q.dtype) @ v
    result = weighted.transpose(1, 2).flatten(2)
    return [result.detach(), *torch.autograd.grad(result, (x, *weights), data(*result.shape))]


@pytest.mark.fails_on_stock
def test_eager_attention(tpu_hlo):
    """What batched products read is flattened: it took 1.09 of the cycles otherwise."""
    from torch_xla._native_attention import trace_for_tpu

    found = tpu_hlo(eager(), "v5e:2x2")
    trace_for_tpu(False)
    assert found.estimated_cycles < 1.01 * tpu_hlo(eager(), "v5e:2x2").estimated_cycles
