"""wide-weight-grad on the TPU compiler: a float32 gradient of a bfloat16 weight, and what it costs."""

import pytest
import torch
import torch_xla
from device_data import data
from marks import fails_on_stock

DEVICE = torch_xla.device()
bf16, f32 = torch.bfloat16, torch.float32


def step(n, grad_dtype):
    """The sum of a gradient so far, in f32, and that of one more micro-batch of a linear layer."""
    weight, x, out = data(n, n).requires_grad_(), data(n, n), data(n, n)
    total = data(n, n, dtype=f32)
    if grad_dtype == f32:
        weight.grad_dtype = f32
        weight.grad = total
    torch_xla.sync()
    torch.nn.functional.linear(x, weight).backward(out)
    return weight.grad if grad_dtype == f32 else total + weight.grad


@fails_on_stock
def test_4096_cubed_has_no_convert_between_convolution_and_sum(tpu_hlo, expect_tpu, topology):
    wide = tpu_hlo(step(4096, f32), topology)
    assert wide.converts == []
    assert [i.dtype for i in wide.module.find("convolution")] == ["f32"]
    expect_tpu(wide.text)


@fails_on_stock
def test_4096_cubed_costs_what_bf16_gradients_cost(tpu_hlo, topology):
    wide, narrow = tpu_hlo(step(4096, f32), topology), tpu_hlo(step(4096, bf16), topology)
    assert narrow.converts == [("bf16", "f32")]
    assert 0 < wide.estimated_cycles <= narrow.estimated_cycles
    assert wide.memory["temp"] <= narrow.memory["temp"]


@fails_on_stock
def test_einsum_rounds_nothing(tpu_hlo, expect_tpu, topology):
    weight, gradient = data(512, 256).requires_grad_(), data(64, 256)
    weight.grad_dtype = f32
    out = torch.einsum("bi,io->bo", data(64, 512), weight)
    torch_xla.sync()
    out.backward(gradient)
    program = tpu_hlo(weight.grad, topology)
    assert program.converts == []
    expect_tpu(program.text)


@fails_on_stock
@pytest.mark.since("2.8", "a padding_idx that is an integer in the graph")
def test_embedding_scatters_in_f32(tpu_hlo, topology):
    """Only the incoming gradient is converted, exactly; the sum over equal indices is f32."""
    weight, gradient = data(1024, 256).requires_grad_(), data(64, 256)
    weight.grad_dtype = f32
    out = torch.nn.functional.embedding(torch.zeros(64, dtype=torch.int64).to(DEVICE), weight)
    torch_xla.sync()
    out.backward(gradient)
    program = tpu_hlo(weight.grad, topology)
    assert [i.dtype for i in program.module.find("scatter")] == ["f32"]
    assert program.converts == [("bf16", "f32")]


@fails_on_stock
def test_convolution_rounds_nothing(tpu_hlo, topology):
    weight, gradient = data(128, 64, 3, 3).requires_grad_(), data(8, 128, 14, 14)
    weight.grad_dtype = f32
    out = torch.nn.functional.conv2d(data(8, 64, 16, 16), weight)
    torch_xla.sync()
    out.backward(gradient)
    program = tpu_hlo(weight.grad, topology)
    assert [i.dtype for i in program.module.find("convolution")] == ["f32"]
    assert program.converts == []
