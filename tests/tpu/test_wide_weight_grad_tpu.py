"""wide-weight-grad on the TPU compiler: a float32 gradient of a bfloat16 weight, and what it costs.

bench/tpu_weight_grad.py prints the same figures of stock and patched wheels side by side.
"""

import pytest
import torch
import torch_xla

DEVICE = torch_xla.device()
bf16, f32 = torch.bfloat16, torch.float32

fails_on_stock = pytest.mark.fails_on_stock


def data(*shape, dtype=bf16):
    return torch.zeros(shape, dtype=dtype).to(DEVICE)


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
@pytest.mark.parametrize("name", ["einsum", "embedding", "conv2d"])
def test_other_operators_round_nothing(tpu_hlo, expect_tpu, topology, name):
    """Every operator whose weight may be wide gives its f32 gradient without a bf16 one before it."""
    weights = {"einsum": (512, 256), "embedding": (1024, 256), "conv2d": (128, 64, 3, 3)}
    weight = data(*weights[name]).requires_grad_()
    weight.grad_dtype = f32
    if name == "einsum":
        out, gradient = torch.einsum("bi,io->bo", data(64, 512), weight), data(64, 256)
    elif name == "embedding":
        out = torch.nn.functional.embedding(torch.zeros(64, dtype=torch.int64).to(DEVICE), weight)
        gradient = data(64, 256)
    else:
        out, gradient = torch.nn.functional.conv2d(data(8, 64, 16, 16), weight), data(8, 128, 14, 14)
    torch_xla.sync()
    out.backward(gradient)
    assert weight.grad.dtype == f32
    program = tpu_hlo(weight.grad, topology)
    narrow_products = [i for i in program.module.find("convolution", "scatter") if i.dtype == "bf16"]
    assert narrow_products == []
    expect_tpu(program.text)
