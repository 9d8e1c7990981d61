"""native-attention, as the TPU compiler sees its programs."""

import pytest
import torch
from device_data import data
from torch.nn.functional import scaled_dot_product_attention
from torch_xla import experimental

SIZES = (4, 8, 1024, 64)

fails_on_stock = pytest.mark.fails_on_stock


def by_torch(q, k, v, **options):
    """What stock computes: torch's formula."""
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, **options)[0]


def step(attend, **options):
    """The result of attention and its gradients, pending."""
    leaves = [data(*SIZES).requires_grad_() for _ in range(3)]
    result = attend(*leaves, **options)
    result.backward(data(*SIZES))
    return [result, *(t.grad for t in leaves)]


@fails_on_stock
def test_a_step_of_attention(tpu_hlo, topology):
    """Fewer cycles and bytes than with torch's formula, and with narrow weights again fewer cycles."""
    stock, wide = (tpu_hlo(step(attend), topology) for attend in (by_torch, scaled_dot_product_attention))
    experimental.narrow_attention(True)
    try:
        narrow = tpu_hlo(step(scaled_dot_product_attention), topology)
    finally:
        experimental.narrow_attention(False)
    cycles = [program.estimated_cycles for program in (stock, wide, narrow)]
    assert cycles[1] < cycles[0] and cycles[2] < cycles[1], cycles
    temp = [program.memory["temp"] for program in (stock, wide, narrow)]
    assert temp[1] <= temp[0] and temp[2] <= temp[0], temp


@fails_on_stock
def test_products_take_the_operands_as_they_are(tpu_hlo, topology):
    """No convert of the query, key or value in front of the scores' convolution."""
    q, k, v = (data(*SIZES) for _ in range(3))
    program = tpu_hlo(scaled_dot_product_attention(q, k, v), topology)
    assert ("bf16", "f32") not in program.converts
    assert ("bf16", "f32") in tpu_hlo(by_torch(q, k, v), topology).converts
