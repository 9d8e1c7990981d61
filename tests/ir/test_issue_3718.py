"""The programs of pytorch/xla#3718 and its relatives: which casts follow a change of a parameter's dtype.

Stock 2.6 and 2.9 are right where the change comes before the graph; those tests, marked ``passes_on_stock`` or
``fails_on_stock("2.1")``, guard the pin. On 2.1, and on every pin where the graph was there first,
patches/torch/data-setter is needed: ``fails_on_stock``.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch_xla
from expecttest import assert_expected_inline
from ir_text import hlo, ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked, fresh
from tensors import DEVICE, bf16, f32, f64

fails_on_stock_2_1 = pytest.mark.fails_on_stock("2.1")

#: The IR of a weight's gradient without a cast.
CLEAN = """\
%0 = bf16[] prim::Constant()
%1 = bf16[] aten::expand(%0)
%2 = bf16[22,66] aten::expand(%1)
%3 = bf16[22,44] xla::device_data()
%4 = bf16[44,22] aten::permute(%3)
%5 = bf16[44,66] aten::mm(%4, %2)
%6 = bf16[66,44] aten::permute(%5)
return %6
"""

_NODE = re.compile(r"^\s*%(\d+) = (\([^()]*\)|\S+) ([\w:]+)\(([^)]*)\)")
_ELEMENT = re.compile(r"(\w+)\[")


def casts(*tensors):
    """The casts of the pending graph, counted by (from, to)."""
    dtypes, found = {}, Counter()
    for line in torch_xla._XLAC._get_xla_tensors_text(list(tensors)).splitlines():
        if (match := _NODE.match(line)) is None:
            continue
        number, shape, op, operands = match.groups()
        outputs = _ELEMENT.findall(shape)
        dtypes[number] = outputs[0]
        dtypes.update({f"{number}.{i}": dtype for i, dtype in enumerate(outputs)})
        if op == "xla::cast":
            found[dtypes[operands.removeprefix("%")], outputs[0]] += 1
    return dict(found)


def device_data(*shape, dtype=f32):
    """Random numbers that are device data: nothing of how they were made is in the graphs that follow."""
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).to(DEVICE)
    torch_xla.sync()
    return tensor


@pytest.fixture
def x():
    return device_data(22, 44, dtype=bf16)


@pytest.fixture
def overwrite():
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(before)


def linear(dtype=None):
    return torch.nn.Linear(44, 66, device=DEVICE, dtype=dtype, bias=False)


def built_in_bf16():
    return linear(bf16)


def cast_after_init():
    return linear().to(bf16)


def cast_without_grad():
    module = linear()
    with torch.no_grad():
        return module.to(bf16)


def cast_by_data():
    module = linear()
    module.weight.data = module.weight.data.to(bf16)
    return module


def cast_by_data_of_a_used_weight():
    """The accumulator of the gradient is there, and of the old dtype, when the dtype changes."""
    module = linear()
    used = module(torch.zeros(1, 44, device=DEVICE))
    module.weight.data = module.weight.data.to(bf16)
    del used
    return module


CASTS = [cast_after_init, cast_without_grad, cast_by_data, cast_by_data_of_a_used_weight]
WAYS = [built_in_bf16, *(pytest.param(make, marks=fails_on_stock_2_1) for make in CASTS)]
ways = pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)


def forward_and_backward(module, x):
    """The IR of both passes, each a graph of its own whose inputs are device data."""
    torch_xla.sync()
    output = module(x)
    forward = ir(output)
    torch_xla.sync()
    output.sum().backward()
    return forward, ir(module.weight.grad)


# ---- nn.Linear, as reported


@passes_on_stock
def test_built_in_bf16(x):
    module = built_in_bf16()
    forward, backward = forward_and_backward(module, x)
    assert_expected_inline(
        forward,
        """\
%0 = bf16[66,44] xla::device_data()
%1 = bf16[44,66] aten::permute(%0)
%2 = bf16[22,44] xla::device_data()
%3 = bf16[22,66] aten::mm(%2, %1)
return %3
""",
    )
    assert backward == CLEAN
    assert module.weight.grad.dtype == bf16


@passes_on_stock
@ways
def test_every_way_gives_the_ir_of_the_one_built_in_bf16(make, x):
    module = make()
    forward, backward = forward_and_backward(module, x)
    lowered = hlo(module.weight.grad)
    assert (forward, backward) == forward_and_backward(built_in_bf16(), x)
    assert "f32" not in forward + backward + lowered
    assert module.weight.dtype == module.weight.grad.dtype == bf16


@fails_on_stock_2_1
def test_forward_and_backward_in_one_graph(x):
    module = cast_after_init()
    torch_xla.sync()
    torch.nn.functional.leaky_relu(module(x)).sum().backward()
    ir(module.weight.grad).expect("""\
%0 = f64[] xla::device_data()
%1 = bf16[66,44] xla::device_data()
%2 = bf16[44,66] aten::permute(%1)
%3 = bf16[22,44] xla::device_data()
%4 = bf16[22,66] aten::mm(%3, %2)
%5 = bf16[] prim::Constant()
%6 = bf16[] aten::expand(%5)
%7 = bf16[22,66] aten::expand(%6)
%8 = bf16[22,66] aten::leaky_relu_backward(%7, %4, %0)
%9 = bf16[44,22] aten::permute(%3)
%10 = bf16[44,66] aten::mm(%9, %8)
%11 = bf16[66,44] aten::permute(%10)
return %11
""")


@passes_on_stock
@ways
def test_several_steps_in_a_row(make, x):
    module = make()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    steps = []
    for _ in range(3):
        torch_xla.sync()
        optimizer.zero_grad()
        module(x).sum().backward()
        backward = ir(module.weight.grad)
        optimizer.step()
        steps.append((backward, ir(module.weight)))
    assert steps[0] == steps[1] == steps[2]
    assert "f32" not in steps[0][0]


@passes_on_stock
def test_overwritten_parameters(x, overwrite):
    module = linear()
    weight = module.weight
    module.to(bf16)
    assert module.weight is not weight
    assert forward_and_backward(module, x) == forward_and_backward(built_in_bf16(), x)
    assert module.weight.grad.dtype == bf16


# ---- the report itself


EXAMPLE = Path(__file__).resolve().parents[2] / "patches" / "torch" / "data-setter" / "example-2.1.py"


@fails_on_stock_2_1
def test_the_program_in_the_readme():
    assert forked(EXAMPLE).stdout == f"torch.bfloat16\n{CLEAN}"


@pytest.mark.skipif(
    not torch.__version__.startswith("2.1."), reason="torch 2.6 and later are right here without data-setter"
)
@passes_on_stock
def test_the_program_in_the_readme_without_the_topic():
    """What the report observed: the gradient goes to float32 and back around the second permute."""
    assert_expected_inline(
        fresh(EXAMPLE, CASTOFF_DISABLE="data-setter").stdout,
        """\
torch.float32
%0 = bf16[] prim::Constant()
%1 = bf16[] aten::expand(%0)
%2 = bf16[22,66] aten::expand(%1)
%3 = bf16[22,44] xla::device_data()
%4 = bf16[44,22] aten::permute(%3)
%5 = bf16[44,66] aten::mm(%4, %2)
%6 = f32[44,66] xla::cast(%5)
%7 = f32[66,44] aten::permute(%6)
%8 = bf16[66,44] xla::cast(%7)
return %8
""",
    )


# ---- casts that are right


@passes_on_stock
def test_amp_casts_the_weight_gradient_to_the_weights_dtype():
    module, x = linear(), device_data(22, 44)
    with torch.autocast("xla", dtype=bf16):
        output = module(x)
    assert casts(output) == {("f32", "bf16"): 2}  # the weight and x
    torch_xla.sync()
    output.sum().backward()
    assert ir(module.weight.grad) == CLEAN.replace("return %6", "%7 = f32[66,44] xla::cast(%6)\nreturn %7")
    assert module.weight.dtype == module.weight.grad.dtype == f32


@fails_on_stock_2_1
def test_amp_of_a_module_in_bf16_has_nothing_to_cast(x):
    module = cast_after_init()
    torch_xla.sync()
    with torch.autocast("xla", dtype=bf16):
        output = module(x)
    forward = ir(output)
    torch_xla.sync()
    output.sum().backward()
    assert (forward, ir(module.weight.grad)) == forward_and_backward(built_in_bf16(), x)


@pytest.mark.since("2.6", "a cast in the IR of a product that promotes")
@passes_on_stock
def test_clone_times_a_wider_tensor():
    """mul promotes, so the engine casts once, where the gradient enters the clone: the leaf is f32."""
    narrow, wide = device_data(3).requires_grad_(), device_data(3, dtype=f64).requires_grad_()
    loss = (narrow.clone() * wide).sum()
    assert casts(loss) == {("f32", "f64"): 1}
    torch_xla.sync()
    loss.backward()
    assert casts(narrow.grad) == {("f64", "f32"): 1}
    assert casts(wide.grad) == {("f32", "f64"): 1}
    assert (narrow.grad.dtype, wide.grad.dtype) == (f32, f64)


# ---- nn.Embedding


@passes_on_stock
@pytest.mark.parametrize("built", [False, True], ids=["cast_after_init", "built_in_bf16"])
def test_embedding(built):
    module = torch.nn.Embedding(16, 4, device=DEVICE, dtype=bf16 if built else f32).to(bf16)
    index = torch.tensor([1, 2]).to(DEVICE)
    torch_xla.sync()
    output = module(index)
    assert output.dtype == bf16
    ir(output).expect("""\
%0 = s64[2] xla::device_data()
%1 = bf16[16,4] xla::device_data()
%2 = bf16[2,4] aten::index_select(%1, %0)
return %2
""")
    torch_xla.sync()
    output.sum().backward()
    assert module.weight.grad.dtype == bf16
    text = ir(module.weight.grad)
    assert "f32" not in text and "xla::cast" not in text and "aten::index_put" in text
    assert "f32" not in hlo(module.weight.grad)


@fails_on_stock_2_1
def test_embedding_moved_to_the_device_and_then_cast():
    module = torch.nn.Embedding(16, 4).to(DEVICE)
    torch_xla.sync()
    module.to(bf16)
    output = module(torch.tensor([1, 2]).to(DEVICE))
    assert output.dtype == module.weight.dtype == bf16


# ---- FSDP


@pytest.fixture
def fsdp():
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    return XlaFullyShardedDataParallel


@passes_on_stock
@pytest.mark.parametrize("flatten", [False, True], ids=["separate", "flattened"])
def test_fsdp_casts_parameters_to_the_compute_dtype_and_gradients_back(fsdp, flatten):
    inner = torch.nn.Linear(8, 4).to(DEVICE)
    module = fsdp(inner, compute_dtype=bf16, flatten_parameters=flatten)
    x = device_data(2, 8)
    shards = 1 if flatten else 2
    for _ in range(2):  # the second step finds parameters whose .data FSDP has set before
        output = module(x)
        assert output.dtype == bf16
        assert casts(output) == {("f32", "bf16"): 1 + shards}  # x and the parameters
        torch_xla.sync()
        output.sum().backward()
        parameters = list(module.parameters())
        assert len(parameters) == shards
        assert {(p.dtype, p.grad.dtype) for p in parameters} == {(f32, f32)}
        assert casts(*(p.grad for p in parameters)) == {("bf16", "f32"): 2}  # weight's and bias's
        torch_xla.sync()
        module.zero_grad()


# ---- the graph was there first


def live_module():
    module = linear()
    loss = module(device_data(22, 44)).sum()
    module.bfloat16()
    return module.weight, loss


def live_data():
    module = linear()
    loss = module(device_data(22, 44)).sum()
    module.weight.data = module.weight.data.to(bf16)
    return module.weight, loss


def live_without_grad():
    module = linear()
    loss = module(device_data(22, 44)).sum()
    with torch.no_grad():
        module.to(bf16)
    return module.weight, loss


def live_across_a_step():
    weight, loss = live_module()
    torch_xla.sync()
    return weight, loss


@fails_on_stock
@pytest.mark.parametrize(
    "make", [live_module, live_data, live_without_grad, live_across_a_step], ids=lambda make: make.__name__
)
def test_live_graph_delivers_the_gradient_in_the_new_dtype(make):
    """What was computed in f32 stays so; the last node makes it what the leaf is now."""
    weight, loss = make()
    torch_xla.sync()
    loss.backward()
    assert weight.dtype == weight.grad.dtype == bf16
    ir(weight.grad).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[] aten::expand(%0)
%2 = f32[22,66] aten::expand(%1)
%3 = f32[22,44] xla::device_data()
%4 = f32[44,22] aten::permute(%3)
%5 = f32[44,66] aten::mm(%4, %2)
%6 = f32[66,44] aten::permute(%5)
%7 = bf16[66,44] xla::cast(%6)
return %7
""")


@fails_on_stock
def test_live_embedding():
    module = torch.nn.Embedding(16, 4, device=DEVICE)
    loss = module(torch.tensor([1, 2]).to(DEVICE)).sum()
    module.bfloat16()
    torch_xla.sync()
    loss.backward()
    assert module.weight.grad.dtype == bf16
    assert casts(module.weight.grad) == {("f32", "bf16"): 1}
    last = ir(module.weight.grad).splitlines()[-2]
    assert re.fullmatch(r"%\d+ = bf16\[16,4\] xla::cast\(%\d+\)", last)


@fails_on_stock
def test_live_clone_of_a_leaf_that_became_wider():
    """The clone asks for f32, the leaf for f64: two casts, and both are said by someone."""
    narrow, wide = device_data(3).requires_grad_(), device_data(3, dtype=f64)
    loss = (narrow.clone() * wide).sum()
    narrow.data = narrow.data.to(f64)
    torch_xla.sync()
    loss.backward()
    assert narrow.grad.dtype == f64
    assert casts(narrow.grad) == {("f64", "f32"): 1, ("f32", "f64"): 1}
