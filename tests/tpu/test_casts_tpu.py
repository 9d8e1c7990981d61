"""exact-casts, native-mul, mixed-operands and amp-on-cpu, as the TPU compiler sees their programs."""

import torch
import torch_xla
import torch_xla.amp
from device_data import data
from marks import fails_on_stock, passes_on_stock
from torch_xla import experimental

DEVICE = torch_xla.device()
bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32


@passes_on_stock
def test_a_round_trip_leaves_the_parameter_itself(tpu_hlo, expect_tpu, topology):
    """exact-casts. Of stock too: within one graph this compiler sees through a round trip that is exact."""
    x = data(256, 512)
    program = tpu_hlo([x.float().t().to(bf16) @ data(256, 128), x.t() @ data(256, 128)], topology)
    assert program.text.count("convolution(") == 2
    assert program.converts == []
    expect_tpu(program.text)


@fails_on_stock
def test_a_product_in_bf16(tpu_hlo, expect_tpu, topology):
    """native-mul: the program asks for a bf16 product; a TPU without bf16 arithmetic widens it by itself."""
    x, y = data(256, 512), data(256, 512)
    with experimental.native_mul_context():
        z = x * y
    expect_tpu(tpu_hlo(z, topology).text)


@passes_on_stock
def test_a_product_as_stock_makes_it(tpu_hlo, expect_tpu, topology):
    """What the one above is without: a f32 product between casts."""
    x, y = data(256, 512), data(256, 512)
    expect_tpu(tpu_hlo(x * y, topology).text)


@fails_on_stock
def test_a_sum_with_a_0d_f32_tensor_is_bf16(tpu_hlo, expect_tpu, topology):
    """mixed-operands: the result that is written is half as wide as stock's, and of the declared dtype."""
    x, shift = data(256, 512), data(dtype=f32)
    program = tpu_hlo(x + shift, topology)
    assert program.text.splitlines()[-2].split(" = ")[1].startswith("bf16[256,512]")
    expect_tpu(program.text)


@fails_on_stock
def test_autocast_feeds_the_mxu_with_bf16(tpu_hlo, expect_tpu, topology):
    """amp-on-cpu: what is traced on CPU-XLA under autocast is what a TPU would get."""
    x, w = data(64, 512, dtype=f32), data(256, 512, dtype=f32)
    with torch_xla.amp.autocast(DEVICE):
        y = torch.nn.functional.linear(x, w)
    program = tpu_hlo(y, topology)
    assert y.dtype is bf16
    expect_tpu(program.text)
