"""What the TPU compiler makes of the topics' programs: IR-expect tests on optimised TPU HLO.

Every test runs on v5e, v5p and v6e. With stock wheels the tests marked ``fails_on_stock`` must fail.
"""

import pytest
import torch
import torch_xla

DEVICE = torch_xla.device()
bf16, f32, s8, s32 = torch.bfloat16, torch.float32, torch.int8, torch.int32

fails_on_stock = pytest.mark.fails_on_stock
passes_on_stock = pytest.mark.passes_on_stock


def data(*shape, dtype=bf16):
    """Zeros that are device data: a parameter of the program, not a constant in it."""
    return torch.zeros(shape, dtype=dtype).to(DEVICE)


def linear(dtype=f32):
    return torch.nn.Linear(512, 256, bias=False, device=DEVICE, dtype=dtype)


def ops(program, name):
    """The instructions of one opcode: (dtype of the result, dtypes of the operands)."""
    found = []
    for computation in program.module.computations.values():
        dtypes = {instruction.name: instruction.dtype for instruction in computation}
        found += [(i.dtype, *(dtypes[o] for o in i.operands)) for i in computation if i.op == name]
    return found


# ---- matmul-out-dtype: pytorch/xla#7160


@fails_on_stock
def test_issue_7160_rounds_nothing_before_its_f32_result(tpu_hlo, expect_tpu, topology):
    q, k, out = data(128, 512), data(128, 512), data(512, 512, dtype=f32)
    torch.matmul(q.t(), k, out=out)
    program = tpu_hlo(out, topology)
    assert ops(program, "convolution") == [("f32", "bf16", "bf16")]
    assert program.converts == []
    expect_tpu(program.text)


@passes_on_stock
def test_a_bf16_product_cast_by_the_user_is_rounded(tpu_hlo, expect_tpu, topology):
    """What the one above is without: the TPU compiler keeps the rounding that a program asks for."""
    q, k = data(128, 512), data(128, 512)
    program = tpu_hlo((q.t() @ k).float(), topology)
    assert program.converts == [("bf16", "f32")]
    expect_tpu(program.text)


@fails_on_stock
def test_mm_out_dtype_feeds_the_mxu_with_s8(tpu_hlo, expect_tpu, topology):
    a, b = data(256, 512, dtype=s8), data(512, 256, dtype=s8)
    program = tpu_hlo(torch.mm(a, b, out_dtype=s32), topology)
    assert ops(program, "convolution") == [("s32", "s8", "s8")]
    expect_tpu(program.text)


@fails_on_stock
def test_addmm_out_dtype_adds_its_bias_in_the_fusion_of_the_product(tpu_hlo, expect_tpu, topology):
    bias, a, b = data(256, dtype=f32), data(128, 512), data(512, 256)
    program = tpu_hlo(torch.addmm(bias, a, b, out_dtype=f32), topology)
    assert ops(program, "convolution") == [("f32", "bf16", "bf16")]
    assert program.converts == []
    expect_tpu(program.text)


@fails_on_stock
def test_bmm_out_dtype(tpu_hlo, expect_tpu, topology):
    a, b = data(4, 128, 512), data(4, 512, 128)
    program = tpu_hlo(torch.bmm(a, b, out_dtype=f32), topology)
    assert ops(program, "convolution") == [("f32", "bf16", "bf16")]
    assert program.converts == []
    expect_tpu(program.text)


# ---- pytorch/xla#3718: a module cast to bf16


@passes_on_stock
def test_issue_3718_has_no_f32_in_its_backward(tpu_hlo, expect_tpu, topology):
    module = linear().to(bf16)
    torch_xla.sync()
    loss = module(data(64, 512)).sum()
    torch_xla.sync()
    loss.backward()
    program = tpu_hlo(module.weight.grad, topology)
    assert "f32" not in program.text
    expect_tpu(program.text)


@fails_on_stock
def test_issue_3718_with_the_graph_first_rounds_once_and_last(tpu_hlo, expect_tpu, topology):
    """data-setter: the graph was made in f32, so its product is f32, and the leaf's dtype is met at the end."""
    module = linear()
    loss = module(data(64, 512, dtype=f32)).sum()
    module.bfloat16()
    torch_xla.sync()
    loss.backward()
    assert module.weight.grad.dtype == bf16
    program = tpu_hlo(module.weight.grad, topology)
    expect_tpu(program.text)


# ---- grad-dtype


@fails_on_stock
def test_a_gradient_declared_f32_accumulates_in_f32(tpu_hlo, expect_tpu, topology):
    weight = data(512, 256).requires_grad_()
    weight.grad_dtype = f32
    x = data(64, 512)
    for _ in range(2):
        (x @ weight).sum().backward()
        torch_xla.sync()
    (x @ weight).sum().backward()
    program = tpu_hlo(weight.grad, topology)
    assert weight.grad.dtype == f32
    assert ("f32", "f32", "f32") in ops(program, "add")
    expect_tpu(program.text)


@passes_on_stock
def test_a_gradient_not_declared_accumulates_in_its_leafs_dtype(tpu_hlo, expect_tpu, topology):
    weight, x = data(512, 256).requires_grad_(), data(64, 512)
    for _ in range(2):
        (x @ weight).sum().backward()
        torch_xla.sync()
    (x @ weight).sum().backward()
    assert weight.grad.dtype == bf16
    expect_tpu(tpu_hlo(weight.grad, topology).text)


# ---- int8, as torch_xla's own primitive lowers it


@passes_on_stock
def test_dot_general_feeds_the_mxu_with_s8(tpu_hlo, expect_tpu, topology):
    a, b = data(256, 512, dtype=s8), data(512, 256, dtype=s8)
    program = tpu_hlo(torch_xla._XLAC._xla_dot_general(a, b, (([1], [0]), ([], [])), None, s32), topology)
    assert ops(program, "convolution") == [("s32", "s8", "s8")]
    expect_tpu(program.text)


# ---- numbers


def test_issue_7160_on_the_device_that_is_there():
    """The product is f32-accurate where it runs: on CPU-XLA, or on the TPU with --device tpu.

    Unmarked: XLA:CPU happens not to round what stock wheels ask it to; the TPU compiler does, see above.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(128, 512, generator=generator).to(bf16) for _ in range(2))
    out = data(512, 512, dtype=f32)
    torch.matmul(q.to(DEVICE).t(), k.to(DEVICE), out=out)
    expected = q.double().t() @ k.double()
    assert (out.cpu().double() - expected).abs().max() < 1e-5 * expected.abs().max()
