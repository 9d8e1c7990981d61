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
