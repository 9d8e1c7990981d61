"""Scores with a bias for each head, as a TPU gets them: patches/torch_xla/unflattened-matmul."""

import os

import pytest
import torch
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import run
from tensors import DEVICE, bf16, f32, random

BATCH, HEADS, TOKENS, WIDTH = 4, 2, 8, 16

pytestmark = pytest.mark.default_pin


def leaves(*shapes, dtype=bf16):
    return [random(*shape, dtype=dtype, seed=i).to(DEVICE).requires_grad_() for i, shape in enumerate(shapes)]


QKV = ((BATCH, HEADS, TOKENS, WIDTH),) * 3
OF_HEADS = (HEADS, TOKENS, TOKENS)


def with_windows(scores, bias):
    """As Swin does that shifts its windows: what they may see is added to each of them, in other dimensions."""
    seen = torch.zeros(2, 1, TOKENS, TOKENS, dtype=bf16, device=DEVICE)
    return ((scores + bias).view(-1, 2, HEADS, TOKENS, TOKENS) + seen).view(scores.shape)


FORMS = {
    "a bias": (lambda scores, bias: scores + bias, OF_HEADS),
    "a bias before": (lambda scores, bias: bias.unsqueeze(0) + scores, OF_HEADS),
    "a bias of a batch of one": (lambda scores, bias: scores + bias, (1, *OF_HEADS)),
    "a scale, and a bias for each query": (lambda scores, bias: scores * 0.25 + bias, (HEADS, TOKENS, 1)),
    "windows": (with_windows, OF_HEADS),
}
STAYS = {
    "no bias": (lambda scores, bias: scores, OF_HEADS),
    "a mask": (lambda scores, mask: scores + mask, (TOKENS, TOKENS)),
    "a mask of each batch": (lambda scores, mask: scores + mask, (BATCH, 1, TOKENS, TOKENS)),
    "a bias of all": (lambda scores, bias: scores + bias, (BATCH, *OF_HEADS)),
    "another function in between": (lambda scores, bias: (scores + bias).tanh(), OF_HEADS),
}


def attention(form, q, k, v, bias):
    return form(q @ k.transpose(-2, -1), bias).softmax(-1) @ v


def differentiated(form, *operands):
    """The result and its gradients."""
    result = attention(form, *operands)
    grad = random(*result.shape, dtype=result.dtype, seed=9).to(DEVICE)
    return [result.detach(), *torch.autograd.grad(result, operands, grad, allow_unused=True)]


def text(tensors):
    return ir(*(t for t in tensors if t is not None))


@fails_on_stock
def test_ir(tpu):
    q, k, bias = leaves(*QKV[:2], OF_HEADS)
    ir((q @ k.mT + bias).softmax(-1)).expect("""\
%0 = bf16[] prim::Constant()
%1 = bf16[2,8,8] xla::device_data()
%2 = bf16[4,2,8,16] xla::device_data()
%3 = bf16[4,2,16,8] aten::permute(%2)
%4 = bf16[4,2,16,8] aten::expand(%3)
%5 = bf16[4,2,8,16] xla::device_data()
%6 = bf16[4,2,8,16] aten::expand(%5)
%7 = bf16[4,2,8,8] xla::dot_general(%6, %4)
%8 = bf16[4,2,8,8] aten::add(%7, %1, %0)
%9 = f32[4,2,8,8] xla::cast(%8)
%10 = f32[4,2,8,8] aten::softmax(%9)
%11 = bf16[4,2,8,8] xla::cast(%10)
return %11
""")


@fails_on_stock
@pytest.mark.parametrize(("form", "bias"), FORMS.values(), ids=FORMS.keys())
def test_forms(form, bias, tpu):
    """The scores and the gradient of the softmax are unflattened."""
    operands = leaves(*QKV, bias)
    found = differentiated(form, *operands)
    assert text(found).count("dot_general") == 2 and text(found).count("aten::matmul") == 4
    tpu(False)
    expected = differentiated(form, *operands)
    assert "dot_general" not in text(expected)
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == e.dtype
        torch.testing.assert_close(f.cpu(), e.cpu(), rtol=2e-2, atol=2e-2)


SAME = """
from test_scores_with_bias import *
from torch_xla._native_attention import trace_for_tpu
for form, bias in FORMS.values():
    operands, results = leaves(*QKV, bias), []
    for enable in (True, False):
        trace_for_tpu(enable)
        results.append([t.cpu() for t in differentiated(form, *operands)])
    print("same", all(map(torch.equal, *results)))
"""


@fails_on_stock
@pytest.mark.slow
def test_the_same_numbers():
    """Bit for bit, where XLA:CPU rounds what the graph rounds."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_allow_excess_precision=false"
    assert run("-c", SAME, XLA_FLAGS=flags).count("same True") == len(FORMS)


@fails_on_stock
@pytest.mark.parametrize(("form", "bias"), STAYS.values(), ids=STAYS.keys())
def test_the_rest_is_flattened(form, bias, tpu):
    """Either form may take more."""
    assert "dot_general" not in text(differentiated(form, *leaves(*QKV, bias)))


@fails_on_stock
def test_matrices_in_another_order_are_no_transposed_ones(tpu):
    """Square matrices: the sizes do not tell how a batch of them was permuted."""
    q, k, bias = leaves(*((BATCH, HEADS, TOKENS, TOKENS),) * 2, OF_HEADS)

    def found():
        flat = k.flatten(0, 1).permute(2, 0, 1)  # [8, 8, 8] of [8, 8, 8]
        return ((q.flatten(0, 1) @ flat).view(BATCH, HEADS, TOKENS, TOKENS) + bias).softmax(-1)

    result = found()
    assert "dot_general" not in ir(result)
    tpu(False)
    assert torch.equal(result.cpu(), found().cpu())


@passes_on_stock
def test_other_devices_have_stocks_graph():
    found = text(differentiated(FORMS["a bias"][0], *leaves(*QKV, OF_HEADS)))
    assert "dot_general" not in found and found.count("aten::matmul") == 6


@fails_on_stock
def test_float32_is_flattened(tpu):
    assert "dot_general" not in text(differentiated(FORMS["a bias"][0], *leaves(*QKV, OF_HEADS, dtype=f32)))
