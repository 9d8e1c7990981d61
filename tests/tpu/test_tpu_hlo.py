"""What the TPU compiler makes of the topics' programs: IR-expect tests on optimised TPU HLO.

Every test runs on v5e, v5p and v6e. With stock wheels the tests marked ``fails_on_stock`` must fail.
"""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_xla
from device_data import data
from marks import fails_on_stock, passes_on_stock

from castoff.core.errors import TpuError
from castoff.formats.xla_text import parse_hlo
from castoff.tpu.client import TpuCompiler
from castoff.tpu.normalize import normalize
from castoff.tpu.trace import program_of

ROOT = Path(__file__).resolve().parents[2]

DEVICE = torch_xla.device()
bf16, f32, s8, s32 = torch.bfloat16, torch.float32, torch.int8, torch.int32

has_out_dtype = pytest.mark.since("2.8", "out_dtype= of matrix products")


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


@has_out_dtype
@fails_on_stock
def test_mm_out_dtype_feeds_the_mxu_with_s8(tpu_hlo, expect_tpu, topology):
    a, b = data(256, 512, dtype=s8), data(512, 256, dtype=s8)
    program = tpu_hlo(torch.mm(a, b, out_dtype=s32), topology)
    assert ops(program, "convolution") == [("s32", "s8", "s8")]
    expect_tpu(program.text)


@has_out_dtype
@fails_on_stock
def test_addmm_out_dtype_adds_its_bias_in_the_fusion_of_the_product(tpu_hlo, expect_tpu, topology):
    bias, a, b = data(256, dtype=f32), data(128, 512), data(512, 256)
    program = tpu_hlo(torch.addmm(bias, a, b, out_dtype=f32), topology)
    assert ops(program, "convolution") == [("f32", "bf16", "bf16")]
    assert program.converts == []
    expect_tpu(program.text)


@has_out_dtype
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


# ---- out-dtype-op: pytorch/pytorch#103333


@passes_on_stock
@pytest.mark.parametrize(("narrow", "wide"), [(bf16, f32), (s8, s32)], ids=["bf16", "s8"])
def test_the_out_dtype_operator_feeds_the_mxu_with_its_operands_dtype(tpu_hlo, expect_tpu, topology, narrow, wide):
    """Of stock too, which casts the operands first: this compiler sees through a cast that is exact."""
    a, b = data(256, 512, dtype=narrow), data(512, 256, dtype=narrow)
    product = torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, wide, a, b)
    program = tpu_hlo(product, topology)
    short = {bf16: "bf16", f32: "f32", s8: "s8", s32: "s32"}
    assert ops(program, "convolution") == [(short[wide], short[narrow], short[narrow])]
    assert program.converts == []
    expect_tpu(program.text)


# ---- several chips


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A program with sharded parameters, and the same with a sharded result, too.

    They are traced in a process of their own: SPMD cannot be switched off again.
    """
    program = tmp_path_factory.mktemp("spmd") / "sharded.py"
    program.write_text(SHARDED)
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, program], env=environment, check=True, stdout=subprocess.PIPE)
    return [base64.b64decode(line) for line in done.stdout.splitlines()]


def test_spmd_shardings_reach_the_tpu_compiler(tpu_compiler, expect_tpu, topology, sharded):
    """A contraction sharded over two of four chips is a convolution of half its length, and an all-reduce."""
    compiled = tpu_compiler.compile(sharded[1], topology, partitions=4)
    assert [i.groups for i in parse_hlo(compiled.hlo).find("all-reduce")] == ["{{0,1},{2,3}}"]
    expect_tpu(normalize(compiled.hlo))


def test_shardings_of_parameters_alone_reach_the_tpu_compiler(tpu_compiler, sharded):
    """As on a device, where XLA chooses the sharding of the result."""
    compiled = tpu_compiler.compile(sharded[0], "v5e:2x2", partitions=4)
    assert [i.groups for i in parse_hlo(compiled.hlo).find("all-reduce")] == ["{{0,1},{2,3}}"]
    assert compiled.memory["output"] == 64 * 256 * 2


SHARDED = """
import base64
import numpy, torch, torch_xla
import torch_xla.distributed.spmd as spmd
import torch_xla.runtime
from castoff.tpu.trace import program_of

torch_xla.runtime.use_spmd()
mesh = spmd.Mesh(numpy.arange(4), (2, 2), ("x", "y"))
a, b = (torch.zeros(shape, dtype=torch.bfloat16).to("xla") for shape in ((128, 512), (512, 256)))
spmd.mark_sharding(a, mesh, ("x", "y"))
spmd.mark_sharding(b, mesh, ("y", None))
out = a @ b
print(base64.b64encode(program_of([out])[0]).decode())
spmd.mark_sharding(out, mesh, ("x", None))
stablehlo, partitions = program_of([out])
assert partitions == 4
print(base64.b64encode(stablehlo).decode())
"""


def test_the_compiler_knows_its_topologies(tpu_compiler):
    assert {name: tpu_compiler.devices(name) for name in ("v5e:1x1", "v5e:4x4", "v5p:2x2x2", "v6e:2x4")} == {
        "v5e:1x1": 1,
        "v5e:4x4": 16,
        "v5p:2x2x2": 8,
        "v6e:2x4": 8,
    }
    with pytest.raises(TpuError, match="no topology v9:2x2") as caught:
        tpu_compiler.devices("v9:2x2")
    for name in ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"):
        assert name in caught.value.expected


def test_two_compilers_at_once(tpu_compiler, tmp_path):
    """libtpu's lock is for the device; nobody who only compiles has to wait or fail."""
    with TpuCompiler(tpu_compiler.python, tmp_path) as other:
        program, _ = program_of([data(8, 8) @ data(8, 8)])
        answers = [compiler.compile(program, "v5e:2x2") for compiler in (other, tpu_compiler)]
    assert not answers[0].cached
    assert normalize(answers[0].hlo) == normalize(answers[1].hlo)


@pytest.mark.parametrize(
    ("program", "topology", "partitions", "options", "message"),
    [
        (b"not MLIR", "v5e:2x2", 1, {}, "not StableHLO"),
        (b"module { func.func @f() { return } }", "v5e:2x2", 1, {}, "does not compile"),
        (None, "v5e:2x2", 5, {}, "has fewer devices"),
        (None, "v5e:2x2", 1, {"xla_no_such_option": "1"}, "does not compile"),
    ],
)
def test_bad_input_is_refused_and_the_compiler_lives_on(tpu_compiler, program, topology, partitions, options, message):
    good, _ = program_of([data(8, 8) @ data(8, 8)])
    with pytest.raises(TpuError, match=message):
        tpu_compiler.compile(program or good, topology, partitions, options)
    assert tpu_compiler.compile(good, topology).hlo


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
