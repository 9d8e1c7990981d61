"""The graph that runs is the graph that was written: patches/torch/graph-identity and patches/torch_xla/graph-identity.

Stock's key of a compiled graph does not say which tensor feeds which operand (pytorch/xla#8353). Each test that
fails on stock runs a second program there that gets the first one's executable.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as met
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from other_process import forked, fresh
from tensors import DEVICE
from torch.nn import functional

HAS_FRONTEND_ATTRIBUTES = "arg7" in (getattr(torch_xla._XLAC, "_xla_custom_call", None).__doc__ or "")


def compilations():
    return (met.metric_data("CompileTime") or [0])[0]


def graph_hash(*tensors):
    return torch_xla._XLAC._get_graph_hash(list(tensors)).hex()


def numbers(*shapes):
    """Tensors of different numbers, on the CPU and as device data on XLA."""
    cpu = [torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) * 7**i for i, shape in enumerate(shapes)]
    on_xla = [tensor.to(DEVICE) for tensor in cpu]
    torch_xla.sync()
    return cpu, on_xla


def check(programs, *shapes):
    """Each program gives on XLA, after those before it, what it gives on the CPU."""
    cpu, on_xla = numbers(*shapes)
    for program in programs:
        torch.testing.assert_close(program(*on_xla).cpu(), program(*cpu), rtol=1e-5, atol=1e-5)


# ---- which tensor feeds which operand

PROGRAMS = {
    "x / y + x, x / y + y": ([lambda x, y: x / y + x, lambda x, y: x / y + y], (2,), (2,)),
    "max, min": ([lambda a, b: torch.where(a > b, a, b), lambda a, b: torch.where(a > b, b, a)], (3,), (3,)),
    "(a - b) * a, (a - b) * b": ([lambda a, b: (a - b) * a, lambda a, b: (a - b) * b], (3,), (3,)),
    "matmul": ([lambda a, b: (a @ b) @ a, lambda a, b: (a @ b) @ b], (2, 2), (2, 2)),
    "cat": ([lambda a, b: torch.cat([a - b, a]), lambda a, b: torch.cat([a - b, b])], (3,), (3,)),
    "three": (
        [
            lambda a, b, c: (a - b) * (a - c),
            lambda a, b, c: (a - b) * (c - b),
            lambda a, b, c: (a - b) * (b - c),
            lambda a, b, c: (b - a) * (b - c),
        ],
        *[(3,)] * 3,
    ),
    # The tree is the same and the leaves' shapes come in another order: stock stops, "expected parameter".
    "shapes": ([lambda a, b, c, d: (a - c) * (a - d), lambda a, b, c, d: (a - c) * (b - c)], (8,), (8,), (1,), (1,)),
}

MARKS = {"matmul": ()}
"""Stock happens to run these right: marked neither way."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, fails_on_stock)) for name in PROGRAMS])
def test_programs_that_differ_in_their_operands(name):
    programs, *shapes = PROGRAMS[name]
    check(programs, *shapes)


@fails_on_stock
def test_the_order_of_outputs():
    """Two results of equal trees: which of them is which is in the key, too."""
    for swap in (False, True):
        (a, b), (x, y) = numbers((4,), (4,))
        first, second = (y, x) if swap else (x, y)
        results = [(x - y) * first, (x - y) * second]
        torch_xla.sync()
        wanted = [(a - b) * (b if swap else a), (a - b) * (a if swap else b)]
        assert [r.tolist() for r in results] == [w.tolist() for w in wanted]


@fails_on_stock
def test_in_place_and_views():
    def program(a, b, third):
        c = a.clone()
        c[:2] -= b[:2]
        return c * third.view(2, 2).t().reshape(4)

    check([lambda a, b: program(a, b, a), lambda a, b: program(a, b, b)], (4,), (4,))


@fails_on_stock
def test_two_outputs_of_one_node():
    def program(a, b, output):
        return torch.topk(a - b, 2)[output].float() * a[:2]

    check([lambda a, b, o=o: program(a, b, o) for o in (0, 1)], (4,), (4,))
    check([lambda a, b: (a - b).sort()[0] * a, lambda a, b: (a - b).sort()[0] * b], (4,), (4,))


def test_backward():
    def program(a, b, target):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        ((a - b) * (a, b)[target]).pow(2).sum().backward()
        return a.grad - 3 * b.grad

    check([lambda a, b, t=t: program(a, b, t) for t in (0, 1)], (3,), (3,))


def test_two_networks_that_learn_from_each_other():
    """Student and teacher change places each step; stock goes on with the first step's loss."""

    def train(device):
        torch.manual_seed(0)
        networks = [torch.nn.Linear(8, 8, bias=False).to(device) for _ in range(2)]
        optimizer = torch.optim.SGD([n.weight for n in networks], lr=0.1)
        x, losses = torch.randn(16, 8).to(device), []
        for step in range(4):
            optimizer.zero_grad()
            a, b = (functional.log_softmax(network(x), -1) for network in networks)
            student, teacher = (a, b.detach()) if step % 2 == 0 else (b, a.detach())
            loss = (teacher.exp() * (teacher - student)).sum()
            loss.backward()
            optimizer.step()
            if device != "cpu":
                torch_xla.sync()
            losses.append(loss.item())
        return losses

    assert train(DEVICE) == pytest.approx(train("cpu"), rel=1e-4)


# ---- each way to compile a graph


@fails_on_stock
def test_graph_hash():
    _, (x, y) = numbers((3,), (3,))
    assert graph_hash((x - y) * x) != graph_hash((x - y) * y)
    assert graph_hash((x - y) * x) == graph_hash((x - y) * x)
    assert graph_hash(x - y, x + y) != graph_hash(x + y, x - y)


@fails_on_stock
def test_torch_compile():
    (a, b), (x, y) = numbers((3,), (3,))
    for function in (lambda a, b: torch.where(a > b, a, b), lambda a, b: torch.where(a > b, b, a)):
        compiled = torch.compile(function, backend="openxla")
        for _ in range(2):
            assert compiled(x, y).cpu().tolist() == function(a, b).tolist()


@fails_on_stock
@pytest.mark.since("2.6", "the optimization barrier as a function of the bridge")
def test_compiled_functions_tell_arguments_of_one_buffer_apart():
    torch._dynamo.reset()
    function = torch.compile(lambda x, y: (x * 2, y * 3), backend="openxla")
    x, y = torch.zeros(4).to(DEVICE), torch.ones(4).to(DEVICE)
    x.copy_(y)
    for _ in range(3):
        doubled, tripled = function(x, y)
        assert torch.equal(doubled.cpu(), x.cpu() * 2)
        assert torch.equal(tripled.cpu(), y.cpu() * 3)
        y = y + 1


@fails_on_stock
@pytest.mark.since("2.6", "torch_xla.compile")
def test_torch_xla_compile():
    (a, b), (x, y) = numbers((3,), (3,))
    for function in (lambda a, b: (a - b) * a, lambda a, b: (a - b) * b):
        compiled = torch_xla.compile(function)
        for _ in range(2):
            assert compiled(x, y).cpu().tolist() == function(a, b).tolist()


ON_DISK = r"""
import json, sys
import torch, torch_xla
import torch_xla.runtime as xr
import torch_xla.debug.metrics as met
xr.initialize_cache(sys.argv[1], readonly=False)
a, b = torch.tensor([1., 2., 3.]), torch.tensor([10., 1., 30.])
x, y = a.to(torch_xla.device()), b.to(torch_xla.device())
torch_xla.sync()
programs = {"max": lambda a, b: torch.where(a > b, a, b), "min": lambda a, b: torch.where(a > b, b, a)}
program = programs[sys.argv[2]]
result = program(x, y)
torch_xla.sync(wait=True)
# XLA:CPU writes what it cannot read back: found, and compiled all the same.
found = [met.counter_value(f"PersistentCache{name}") or 0 for name in ("Hit", "DeserializeFailure")]
print(json.dumps([torch.equal(result.cpu(), program(a, b)), sum(found)]))
"""


def from_disk(folder, program, **environment):
    """Whether another process with the cache on disk computes rightly, and how many executables it found there."""
    run = fresh if environment else forked
    lines = run("-c", ON_DISK, folder / "cache", program, **environment).stdout.splitlines()
    return tuple(json.loads(lines[-1]))


@fails_on_stock
@pytest.mark.since("2.6", "a cache on disk for the CPU")
def test_the_cache_on_disk(tmp_path):
    assert from_disk(tmp_path, "max") == (True, 0)
    assert from_disk(tmp_path, "min") == (True, 0)
    assert from_disk(tmp_path, "max") == (True, 1)
    assert from_disk(tmp_path, "min") == (True, 1)


@fails_on_stock
@pytest.mark.since("2.6", "a cache on disk for the CPU")
@pytest.mark.slow
def test_a_cache_on_disk_that_stock_wrote(tmp_path):
    """Switched off, the topic leaves stock's keys; what is under those is never read as something else."""
    off = {"CASTOFF_DISABLE": "graph-identity"}
    assert from_disk(tmp_path, "max", **off) == (True, 0)
    assert from_disk(tmp_path, "min", **off)[1] == 1, "stock's fault is gone, and the topic can go"
    assert from_disk(tmp_path, "min") == (True, 0)
    assert from_disk(tmp_path, "max") == (True, 0)


SHARDED = r"""
import json
import numpy as np
import torch, torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (2, 2), ("x", "y"))
a, b = torch.arange(16.).reshape(4, 4), torch.arange(16.).reshape(4, 4).t() * 3
specs = [("x", "y"), ("y", "x"), ("x", None), (None, "x"), (("x", "y"), None), (None, None)]
found = {"wrong": [], "keys": []}
for spec in specs:
    x, y = a.to("xla"), b.to("xla")
    xs.mark_sharding(x, mesh, spec)
    xs.mark_sharding(y, mesh, spec)
    for name, program in {"first": lambda a, b: (a - b) @ a, "second": lambda a, b: (a - b) @ b}.items():
        result = program(x, y)
        found["keys"].append(torch_xla._XLAC._get_graph_hash([result]).hex())
        if not torch.allclose(result.cpu(), program(a, b)):
            found["wrong"].append([str(spec), name])
    # A value within the graph.
    for other in specs[:2]:
        result = x * 2
        xs.mark_sharding(result, mesh, other)
        after = result + 1
        found["keys"].append(torch_xla._XLAC._get_graph_hash([after]).hex())
        if not torch.allclose(after.cpu(), a * 2 + 1):
            found["wrong"].append([str(spec), str(other)])
found["distinct"] = len(set(found.pop("keys")))
print(json.dumps(found))
"""


@fails_on_stock
@pytest.mark.since("2.6", "torch_xla.distributed.spmd")
def test_sharded():
    found = json.loads(forked("-c", SHARDED, CPU_NUM_DEVICES="4").stdout.splitlines()[-1])
    # Two programs and two annotations for each of six shardings.
    assert found == {"wrong": [], "distinct": 6 * 4}


# ---- data of two devices

TWO_DEVICES = """
import torch, torch_xla

a = torch.tensor([1.0], device="xla:1")
b = torch.tensor([2.0], device="xla:2")
torch_xla.sync()
programs = {
    "add": lambda: a + b,
    "matmul": lambda: a @ b,
    "in place": lambda: a.clone().add_(b),
    "a constant": lambda: torch.zeros(1, device="xla:1") + b,
    "sent": lambda: a.to("xla:2") + b,
    "copied": lambda: a.clone().copy_(b),
    "of the CPU": lambda: a + b.cpu(),
}
for name, program in programs.items():
    try:
        print(name, program().item())
    except RuntimeError as error:
        print(name, "|", str(error).splitlines()[0])
print(a.item(), b.item())
"""


@fails_on_stock
@pytest.mark.since("2.6", "torch_xla.sync")
def test_a_graph_with_data_of_two_devices_is_refused():
    """On stock it ends the process: pytorch/xla#8973."""
    refused = "Expected all tensors to be on the same device, but found at least two devices, CPU:2 and CPU:1!"
    assert forked("-c", TWO_DEVICES, CPU_NUM_DEVICES="4").stdout.splitlines() == [
        f"add | {refused}",
        f"matmul | {refused}",
        f"in place | {refused}",
        f"a constant | {refused}",
        "sent 3.0",
        "copied 2.0",
        "of the CPU 3.0",
        "1.0 2.0",
    ]


# ---- what stays


@passes_on_stock
def test_the_same_graph_is_compiled_once():
    _, (x, y) = numbers((5,), (5,))
    before = None
    for step in range(6):
        x = (x - y) * 0.5 + x.tanh() * y
        y = y + x.sum() * 0.125
        torch_xla.sync()
        if step == 1:
            before = compilations()
    assert compilations() == before


@passes_on_stock
def test_one_executable_serves_other_tensors_in_the_same_places():
    _, (a, b, c) = numbers((6,), (6,), (6,))
    ((a - b) * a).cpu()
    before = compilations()
    ((b - c) * b).cpu()
    ((c - a) * c).cpu()
    assert compilations() == before


def test_sharing_does_not_matter():
    """a - b computed twice or once is one graph: the same function of the same parameters."""
    _, (a, b) = numbers((6,), (6,))
    once = a - b
    assert graph_hash(once * once) == graph_hash((a - b) * (a - b))


@passes_on_stock
def test_training_compiles_as_often_as_on_stock():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(2, 8).to(DEVICE)
    torch_xla.sync()
    counts = []
    for _ in range(6):
        model(x).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        counts.append(compilations() - sum(counts))
    assert counts[3:] == [0, 0, 0]


# ---- settings and attributes


@fails_on_stock
@pytest.mark.since("2.6", "a setting of this precision")
def test_precision_of_matrix_products(set_matmul_precision):
    _, (x, y) = numbers((4, 4), (4, 4))
    counts = []
    for precision in ("default", "highest", "high", "default", "highest", "high"):
        set_matmul_precision(precision)
        before = compilations()
        torch_xla._XLAC._xla_sync_multi([x @ y], [])
        counts.append(compilations() - before)
    assert counts == [1, 1, 1, 0, 0, 0]


def distinct(make, *variants):
    """That each variant's graph has a key of its own, and the same one again."""
    hashes = [graph_hash(*make(variant)) for variant in (*variants, *variants)]
    assert len(set(hashes)) == len(variants)
    assert hashes[: len(variants)] == hashes[len(variants) :]


@fails_on_stock
def test_pixel_shuffle():
    """torch_xla's own node keeps its factor to itself, and so the second gets the first one's shape."""
    for factor in (3, 1):
        cpu = torch.arange(36.0).reshape(1, 9, 2, 2)
        x = cpu.to(DEVICE).requires_grad_()
        shuffled = functional.pixel_shuffle(x, factor)
        shuffled.pow(2).sum().backward()
        assert torch.equal(shuffled.cpu(), functional.pixel_shuffle(cpu, factor))
        assert torch.equal(x.grad.cpu(), 2 * cpu)


@fails_on_stock
def test_pixel_shuffle_is_views():
    x = torch.ones(1, 9, 2, 2).to(DEVICE)
    ir(functional.pixel_shuffle(x, 1)).expect("""\
%0 = f32[1,9,2,2] xla::device_data()
%1 = f32[1,9,1,1,2,2] aten::view(%0)
%2 = f32[1,9,2,1,2,1] aten::permute(%1)
%3 = f32[1,9,2,2] aten::view(%2)
return %3
""")


def test_pixel_shuffle_is_a_copy():
    for factor in (1, 2):
        x = torch.arange(8.0).reshape(1, 4, 2, 1).to(DEVICE)
        functional.pixel_shuffle(x, factor).add_(1)
        assert x.cpu().flatten().tolist() == list(range(8))
    with pytest.raises(RuntimeError):
        functional.pixel_shuffle(x, 3).cpu()


@fails_on_stock
def test_exponential():
    """torch_xla's node keeps its shape to itself."""
    for shape in ((10,), (5, 5), (2, 5)):
        torch_xla.sync()  # the seed of each is one number, and not a longer and longer formula
        assert torch.empty(shape, device=DEVICE).exponential_().cpu().shape == shape


@fails_on_stock("2.6", "2.7", "2.8", "2.9")  # 2.1 computes these on the CPU
@pytest.mark.parametrize("dims", [2, 3])
def test_divisor_of_an_average(dims):
    """torch_xla's node keeps it to itself: a second divisor is the first one."""
    pool = functional.avg_pool2d if dims == 2 else functional.avg_pool3d
    (cpu,), (x,) = numbers((2, 3, *(5, 6, 4)[:dims]))
    for divisor in (None, 2, 7):
        for options in ({}, {"padding": 1, "stride": 2}, {"padding": 1, "ceil_mode": True, "stride": (3, 2, 2)[:dims]}):
            for include in (True, False):
                given = {"kernel_size": 3, "count_include_pad": include, "divisor_override": divisor, **options}
                torch.testing.assert_close(pool(x, **given).cpu(), pool(cpu, **given))


@passes_on_stock
def test_an_average_without_a_divisor_is_one_node():
    _, (x,) = numbers((2, 3, 6, 6))
    assert "aten::avg_pool2d(%0)\nreturn" in ir(functional.avg_pool2d(x, 2))


@fails_on_stock("2.6", "2.7", "2.8", "2.9")
def test_a_divisor_of_zero_is_refused():
    _, (x,) = numbers((2, 3, 6, 6))
    with pytest.raises(RuntimeError, match="divisor must be not zero"):
        functional.avg_pool2d(x, 2, divisor_override=0)


def scales(device, growth, backoff, interval):
    """The scale and the tracker of a GradScaler, over some steps of which one overflows."""
    scale = torch.full((1,), 8.0, device=device)
    tracker = torch.zeros(1, dtype=torch.int32, device=device)
    found = []
    for overflow in (0.0, 0.0, 0.0, 1.0, 0.0):
        torch._amp_update_scale_(scale, tracker, torch.full((1,), overflow, device=device), growth, backoff, interval)
        found.append((scale.item(), tracker.item()))
    return found


@fails_on_stock
@pytest.mark.since("2.6", "the scale of a GradScaler on the CPU, to compare with")
def test_scale_of_a_grad_scaler():
    """torch_xla's node keeps its three numbers to itself: a second GradScaler has the first one's."""
    for numbers in ((2.0, 0.5, 2), (3.0, 0.25, 2), (2.0, 0.5, 1), (float("inf"), 0.5, 2)):
        assert scales(DEVICE, *numbers) == scales("cpu", *numbers)


@fails_on_stock
@pytest.mark.since("2.6", "custom calls from Python")
def test_custom_calls():
    """torch_xla's node keeps all but the target to itself. Keys alone: the CPU has no such targets."""
    _, (x,) = numbers((4, 4))

    def call(target="a", has_side_effect=False, backend_config="", api_version=1):
        arguments = target, [[4, 4]], [torch.float32], has_side_effect, backend_config, api_version
        return torch_xla._XLAC._xla_custom_call([x], *arguments, *([{}] if HAS_FRONTEND_ATTRIBUTES else []))

    variants = [{}, {"target": "b"}, {"has_side_effect": True}, {"backend_config": "x"}, {"api_version": 2}]
    distinct(lambda variant: call(**variant), *variants)


OTHER_FRONTEND_ATTRIBUTES = """
import torch, torch_xla
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call as call
x = torch.ones(4).to("xla")
for place in ("device", "device", "pinned_host", "device"):
    call([x], "annotate_device_placement", [[4]], [torch.float32], True, frontend_attributes={"placement": place})
"""


@fails_on_stock
@pytest.mark.skipif(not HAS_FRONTEND_ATTRIBUTES, reason="custom calls of this torch_xla have no frontend attributes")
def test_other_frontend_attributes_are_warned_of_once():
    """torch_xla's node keeps them to itself, and to its text as well: the key cannot have them."""
    warning = "custom calls of 'annotate_device_placement' have different frontend attributes"
    assert forked("-c", OTHER_FRONTEND_ATTRIBUTES).stderr.count(warning) == 1


# ---- off, and out of effect

SYMBOL = "_ZN5torch4lazy17LazyGraphExecutor12RunPostOrderERKSt6vectorINS0_5ValueESaIS3_EEPNS1_20SyncTensorCollectionE"


@pytest.fixture
def impostor(tmp_path):
    """A library with a function of that name, for LD_PRELOAD."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    castoff = getattr(torch, "_castoff", None)
    if castoff is not None and not hasattr(castoff.library(), "castoff_graph_identity_in_effect"):
        pytest.skip("this torch was built from source, and takes the place of nothing")
    library = tmp_path / "libimpostor.so"
    source = f"void {SYMBOL}(void) {{}}\n"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True)
    return library


@fails_on_stock
@pytest.mark.slow
def test_import_warns_if_another_library_won(impostor):
    assert "xla#8353" in fresh("-c", "import torch_xla", LD_PRELOAD=str(impostor)).stderr
    assert "xla#8353" not in fresh("-c", "import torch_xla").stderr


@fails_on_stock
@pytest.mark.slow
def test_the_doctor_names_the_other_library(impostor):
    command = [sys.executable, "-m", "castoff_doctor", "--json"]
    environment = {**os.environ, "LD_PRELOAD": str(impostor)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    rows = json.loads(result.stdout)["findings"]
    [row] = [row for row in rows if row["check"] == "interpositions"]
    assert row["status"] == "fault"
    assert "RunPostOrder" in row["found"] and "libimpostor.so" in row["found"]
