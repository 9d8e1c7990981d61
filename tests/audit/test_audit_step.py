"""``castoff.audit.audit``: what it says of steps whose casts are known."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_xla
from torch import nn

from castoff.audit import audit, worker
from castoff.audit.report import Report, summary
from castoff.audit.watch import Watch
from castoff.tpu.trace import BAD_PROGRAM

HERE = Path(__file__)
WORKER = Path(worker.__file__)
BF16, F32 = torch.bfloat16, torch.float32


def on_xla(*shape, dtype=F32, requires_grad=False):
    tensor = torch.ones(*shape, dtype=dtype).to("xla").requires_grad_(requires_grad)
    torch_xla.sync()
    return tensor


def told(report):
    """What is said of each cast between float dtypes, without the line."""
    return [(c.phase, f"{c.source} {c.target}", c.why, c.exactness, c.topic) for c in report.floating]


class Wide(torch.autograd.Function):
    """The identity, with a float32 gradient whatever its input is."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return torch.ones(grad.shape, device=grad.device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, checkpoint=False):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.checkpoint = checkpoint

    def forward(self, x):
        if self.checkpoint:
            return torch.utils.checkpoint.checkpoint(self.blocks, x, use_reentrant=False)
        return self.blocks(x)


@pytest.mark.passes_on_stock
class TestReasons:
    def test_explicit(self):
        x = on_xla(4, 8)
        report = audit(lambda: x.sin().bfloat16().to(F32))
        assert told(report) == [
            ("forward", "f32 bf16", "explicit", "lossy narrowing", None),
            ("forward", "bf16 f32", "explicit", "lossy round trip", None),
        ]
        assert [(cast.op, cast.bytes) for cast in report.casts] == [("bfloat16", 4 * 8 * 6), ("to", 4 * 8 * 6)]

    def test_the_line(self):
        def step():
            return x.sin().half()

        x = on_xla(4)
        (cast,) = audit(step).casts
        assert (cast.place.file, cast.place.line) == (__file__, step.__code__.co_firstlineno + 1)
        assert cast.program == cast.place

    def test_autocast_and_its_derivative(self):
        torch.manual_seed(0)
        linear, x = nn.Linear(8, 16, bias=False).to("xla"), on_xla(4, 8)

        def step():
            with torch.autocast("xla", dtype=BF16):
                y = linear(x)
            loss = y.sum()
            loss.backward()
            return loss

        report = audit(step)
        assert sorted(told(report), key=str) == [
            ("backward", "bf16 f32", "autocast", "exact widening", "wide-weight-grad"),
            ("forward", "f32 bf16", "autocast", "lossy narrowing", "wide-weight-grad"),
            ("forward", "f32 bf16", "autocast", "lossy narrowing", None),
        ]
        assert {(cast.module, cast.parameter) for cast in report.casts if cast.topic} == {("Linear", "Linear.weight")}

    def test_autocast_within_an_operation(self):
        q = on_xla(2, 2, 4, 8, dtype=BF16)

        def step():
            with torch.autocast("xla", dtype=BF16):
                return nn.functional.scaled_dot_product_attention(q, q, q)

        kept = step()
        unwatched = torch_xla._XLAC._get_xla_tensors_text([kept])
        assert len(audit(step).floating) == unwatched.count("xla::cast") > 0

    def test_math(self):
        x = on_xla(4, 8, dtype=BF16)
        report = audit(lambda: x * x.sin())
        assert {row[2] for row in told(report)} == {"op's math type"}
        assert {row[4] for row in told(report)} == {"native-mul"}
        assert {cast.op for cast in report.casts} == {"mul"}
        # A number is not rounded to bfloat16, whatever the setting.
        assert {row[4] for row in told(audit(lambda: x * 1.1))} == {None}

    def test_a_conversion_within_an_operation(self):
        x, weight = on_xla(4, 8, dtype=BF16), on_xla(8)
        report = audit(lambda: torch.addcmul(weight, x, weight))
        assert [cast.why for cast in report.floating] == ["op's math type"] * len(report.floating) != []
        assert all("aten::addcmul" in cast.ir["node"][0] for cast in report.floating)

    def test_the_engine(self):
        w = on_xla(4, 8, dtype=BF16, requires_grad=True)

        def step():
            Wide.apply(w).backward(torch.ones(4, 8, device="xla", dtype=BF16))
            return w.grad

        rows = [row for row in told(audit(step)) if row[2] == "autograd engine"]
        assert rows == [("backward", "f32 bf16", "autograd engine", "lossy narrowing", "grad-dtype")]

    def test_a_promoted_operand(self):
        """The formula of add keeps the dtype of the gradient; the engine converts it to that of the operand."""
        w, x = on_xla(4, 8, dtype=BF16, requires_grad=True), on_xla(4, 8)

        def step():
            (w.sin() + x).sum().backward()
            return w.grad

        (cast,) = (cast for cast in audit(step).floating if cast.why == "autograd engine")
        assert (cast.op, cast.source, cast.target) == ("after AddBackward0", "f32", "bf16")

    def test_the_optimizer(self):
        w = on_xla(4, 8, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

        def step():
            w.grad = w.detach().sin()
            optimizer.step()

        step()
        torch_xla.sync()
        w.data = w.data.bfloat16()
        optimizer.state[w]["momentum_buffer"] = optimizer.state[w]["momentum_buffer"].bfloat16()
        torch_xla.sync()
        report = audit(step)
        assert {(cast.phase, cast.why, cast.op) for cast in report.floating} == {("optimizer", "optimizer", "SGD.step")}

    def test_a_closure_of_an_optimizer(self):
        x, model = on_xla(4, 8), nn.Linear(8, 8, bias=False).to("xla")
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

        def closure():
            with torch.autocast("xla", dtype=BF16):
                loss = model(x).sum()
            loss.backward()
            return loss

        casts = [cast for cast in audit(optimizer.step, closure).floating if cast.why == "autocast"]
        assert {(cast.phase, cast.module) for cast in casts} == {("forward", "Linear"), ("backward", "Linear")}

    def test_an_update_by_hand(self):
        w = on_xla(4, 8, requires_grad=True)

        def step():
            w.sin().sum().backward()
            with torch.no_grad():
                w.sub_(w.grad.bfloat16())

        assert told(audit(step))[0][:3] == ("optimizer", "f32 bf16", "optimizer")

    def test_gradients_that_are_changed_by_hand(self):
        w, x = on_xla(4, 8, requires_grad=True), on_xla(4, 8)

        def step():
            w.sin().sum().backward()
            # Autograd is on in all of them, and takes no part in the first.
            return w.grad.bfloat16(), w.half() * 2, x.half()

        assert {(cast.phase, cast.target) for cast in audit(step).floating} == {
            ("optimizer", "bf16"),
            ("forward", "f16"),
            ("forward", "f32"),
        }

    def test_the_gradient_of_the_root(self):
        w = on_xla(4, 8, dtype=BF16, requires_grad=True)

        def step():
            w.exp().backward(torch.ones(4, 8, device="xla").sin())
            return w.grad

        (cast, *_) = audit(step).floating
        assert (cast.phase, cast.why, cast.op) == ("backward", "autograd engine", "the root of the backward")

    def test_integers_are_listed_apart(self):
        x = on_xla(4, 8)
        report = audit(lambda: x.bool().float())
        assert (report.floating, [(c.source, c.target) for c in report.casts][-1]) == ((), ("pred", "f32"))


@pytest.mark.passes_on_stock
class TestPhases:
    """Of a training loop, what is neither forward nor backward, each by the name that programs give it."""

    @staticmethod
    def of(after_backward, **kwargs):
        linear, x = nn.Linear(8, 8).to("xla", BF16), on_xla(4, 8, dtype=BF16)

        def step():
            linear.zero_grad()
            linear(x).sum().backward()
            after_backward(linear)
            return [parameter.grad for parameter in linear.parameters()]

        report = audit(step, calls=2)
        assert report.floating
        return {cast.phase for cast in report.floating if cast.phase != "backward"}

    def test_clipping_alone(self):
        """The step of a user: torch_xla's own clip_grad_norm_ runs with autograd on."""
        assert self.of(lambda linear: torch.nn.utils.clip_grad_norm_(linear.parameters(), 1.0)) == {"gradient clipping"}

    def test_clipping_by_value(self):
        def clip_grads(linear):
            for parameter in linear.parameters():
                parameter.grad = parameter.grad.float().clamp(-1, 1).bfloat16()

        assert self.of(clip_grads) == {"gradient clipping"}

    @pytest.mark.parametrize("of_torch", [True, False])
    def test_a_moving_average(self, of_torch):
        averages = []

        class WeightEma:
            @torch.no_grad()
            def update(self, linear):
                averages.extend(parameter.detach() * 0.1 for parameter in linear.parameters())

        def average(linear):
            model = torch.optim.swa_utils.AveragedModel(linear, avg_fn=lambda a, b, count: a * 0.9 + b * 0.1)
            model.update_parameters(linear)
            model.update_parameters(linear)
            averages.append(model)

        assert self.of(average if of_torch else WeightEma().update) == {"moving average"}

    def test_loss_scaling(self):
        class GradScaler:
            def scale(self, loss):
                return loss * 128.0

            def unscale_(self, parameters):
                for parameter in parameters:
                    parameter.grad.mul_(1 / 128.0)

        scaler, w = GradScaler(), on_xla(4, 8, dtype=BF16, requires_grad=True)

        def step():
            loss = scaler.scale(w.sum())
            loss.backward()
            scaler.unscale_([w])
            return loss, w.grad

        assert {cast.phase for cast in audit(step).floating} == {"loss scaling", "backward"}

    def test_the_next_batch_is_a_forward(self):
        w, x = on_xla(4, 8, requires_grad=True), on_xla(4, 8)

        def step():
            for _ in range(2):
                (w * x.half()).sum().backward()
            return w.grad

        assert {cast.phase for cast in audit(step).floating if cast.op == "half"} == {"forward"}


class TestTopics:
    @pytest.mark.fails_on_stock
    def test_a_product_in_its_operands_type_has_no_cast(self):
        from torch_xla.experimental import native_mul_context

        x = on_xla(4, 8, dtype=BF16)
        with native_mul_context():
            assert audit(lambda: x * x.sin()).casts == ()

    @pytest.mark.fails_on_stock
    def test_what_the_engine_recorded(self):
        w = on_xla(4, 8, dtype=BF16, requires_grad=True)

        def step():
            Wide.apply(w.sin()).backward(torch.ones(4, 8, device="xla", dtype=BF16))
            return w.grad

        (cast,) = (cast for cast in audit(step).casts if cast.why == "autograd engine")
        assert cast.implicit == {"produced_by": "WideBackward", "demanded_by": "SinBackward0"}

    @pytest.mark.fails_on_stock
    def test_an_exact_round_trip_is_gone(self):
        x = on_xla(4, 8, dtype=BF16)
        report = audit(lambda: x.float().t().bfloat16().sin())
        assert "exact round trip" not in report.totals()["by_exactness"]

    @pytest.mark.fails_on_stock
    def test_a_wide_product_has_no_cast(self):
        x, out = on_xla(8, 8, dtype=BF16), on_xla(8, 8)
        assert audit(lambda: torch.mm(x, x, out=out)).casts == ()

    @pytest.mark.fails_on_stock
    def test_a_wide_gradient_has_no_cast(self):
        linear, x = nn.Linear(8, 16, bias=False).to("xla", BF16), on_xla(4, 8, dtype=BF16)
        linear.weight.grad_dtype = F32

        def step():
            linear(x).sum().backward()
            return linear.weight.grad

        assert audit(step).casts == ()
        assert linear.weight.grad.dtype is F32


@pytest.mark.passes_on_stock
class TestAccumulations:
    @staticmethod
    def of(step):
        return [(found.kind, found.length, found.op) for found in audit(step).accumulations]

    @pytest.mark.parametrize(
        ("step", "found"),
        [
            (lambda x, image, weight, index: x @ x.t(), ("dot", 8, "matmul")),
            (lambda x, image, weight, index: x.sum(0), ("reduce", 4, "sum")),
            (lambda x, image, weight, index: torch.conv2d(image, weight), ("convolution", 4 * 9, "conv2d")),
            (lambda x, image, weight, index: x.index_add(0, index, x[:3]), ("scatter", 3, "index_add")),
        ],
    )
    def test_each_kind(self, step, found):
        given = [on_xla(*shape, dtype=BF16) for shape in ((4, 8), (2, 4, 6, 6), (5, 4, 3, 3))]
        index = torch.tensor([1, 0, 1]).to("xla")
        assert self.of(lambda: step(*given, index)) == [found]
        assert self.of(lambda: step(*(tensor.float() for tensor in given), index)) == []

    def test_none(self):
        x, index = on_xla(4, 8, dtype=BF16), torch.tensor([1, 0, 1]).to("xla")
        assert self.of(lambda: (x.amax(0), x.sin(), x.index_copy(0, index, x[:3]), x.sum(0, dtype=F32))) == []

    def test_of_the_backward(self):
        linear, x = nn.Linear(8, 16, bias=False).to("xla", BF16), on_xla(4, 8, dtype=BF16)

        def step():
            linear(x).backward(torch.ones(4, 16, device="xla", dtype=BF16))
            return linear.weight.grad

        report = audit(step)
        assert [(found.phase, found.module, found.kind, found.length) for found in report.accumulations] == [
            ("backward", "Linear", "dot", 4)
        ]
        assert report.faults(forbid=["narrow-accumulation"])


@pytest.mark.passes_on_stock
class TestDepartures:
    def test_of_the_forward_and_the_backward(self):
        model, x = nn.Linear(8, 8).to("xla"), on_xla(8, 8)
        diagonal = torch.diag(torch.arange(8.0)).to("xla")

        def step():
            y = model(x)
            kept = y.nonzero()
            torch.linalg.eigvals(y + diagonal).real.sum().backward()
            return kept, y.nonzero()

        report = audit(step)
        nonzero = [found for found in report.departures if found.operator == "aten::nonzero"]
        assert [found.count for found in nonzero] == [1, 1]
        assert [(found.phase, found.op, found.to_host) for found in nonzero] == [("forward", "nonzero", 8 * 8 * 4)] * 2
        assert nonzero[0].to_device == 8 * 8 * 2 * 8 and nonzero[0].place.function == "step"
        assert nonzero[0].place.line + 2 == nonzero[1].place.line
        assert any(found.operator == "aten::_linalg_solve_ex" for found in report.departures)
        faults = report.faults(forbid=["leaves-device"])
        assert len(faults) == len(report.departures) and "aten::nonzero × 1 at test_audit_step.py:" in faults[0]
        assert str(report.departures[0]) in summary(report)
        assert Report.from_dict(report.as_dict()).departures == report.departures

    def test_a_loop_is_one_place(self):
        x = on_xla(4, 8)
        report = audit(lambda: [x.nonzero() for _ in range(3)])
        assert [(found.count, found.to_host) for found in report.departures] == [(3, 3 * 4 * 8 * 4)]

    def test_none(self):
        report = audit(lambda: on_xla(4, 8).softmax(0).sum())
        assert report.departures == () and report.faults(forbid=["leaves-device"]) == []


@pytest.mark.passes_on_stock
class TestPaths:
    def test_of_the_forward_and_the_backward(self):
        model, x = Model().to("xla", BF16), on_xla(4, 8)
        with torch.no_grad():
            torch_xla.sync()

        def step():
            with torch.autocast("xla", dtype=torch.float16):
                model(x).sum().backward()
            return [parameter.grad for parameter in model.parameters()]

        modules = {phase: set() for phase in ("forward", "backward")}
        for cast in audit(step).floating:
            modules[cast.phase].add(cast.module)
        layers = {f"Model.blocks.{n}.{name}" for n in (0, 1) for name in ("up", "down")}
        assert modules["forward"] == layers
        assert modules["backward"] - {""} == layers

    @pytest.mark.skipif(not hasattr(torch, "xla"), reason="the topic checkpoint-on-xla is not in these wheels")
    def test_of_what_is_recomputed(self):
        model, x = Model(checkpoint=True).to("xla"), on_xla(4, 8, requires_grad=True)

        def step():
            model(x.bfloat16()).sum().backward()
            return x.grad

        for block in model.blocks:
            block.up.register_forward_pre_hook(lambda module, args: args[0].float())
            block.down.register_forward_hook(lambda module, args, output: output.bfloat16())
        again = [cast for cast in audit(step).floating if cast.phase == "backward" and cast.op in ("float", "bfloat16")]
        assert {cast.why for cast in again} == {"explicit"}
        assert {cast.module for cast in again} >= {"Model.blocks.1.up"}


@pytest.mark.passes_on_stock
class TestGraphs:
    def test_values_that_are_read(self):
        x = on_xla(4)

        def step():
            if x.bfloat16().sum().item() > 3:
                return x.half()
            return None

        report = audit(step)
        assert [(graph.reason, graph.place.split(":")[0]) for graph in report.graphs] == [
            ("aten._local_scalar_dense reads a value", HERE.name),
            ("end of the step", ""),
        ]
        assert [(cast.graph, cast.target) for cast in report.floating] == [(0, "bf16"), (1, "f16")]

    def test_syncs_of_the_program(self):
        x = on_xla(4)

        def step():
            y = x.bfloat16()
            torch_xla.sync()
            return y.sin()

        report = audit(step)
        assert [graph.reason for graph in report.graphs] == ["sync", "end of the step"]
        assert [cast.graph for cast in report.floating] == [0]

    def test_the_last_call_counts(self):
        x, calls = on_xla(4), []

        def step():
            calls.append(1)
            return x.bfloat16() if len(calls) < 3 else x.half()

        assert [cast.target for cast in audit(step, calls=3).casts] == ["f16"]
        with pytest.raises(ValueError, match="calls=0"):
            audit(step, calls=0)

    def test_arguments(self):
        assert [cast.target for cast in audit(lambda x, to: x.to(to), on_xla(4), to=BF16).casts] == ["bf16"]

    def test_an_error_leaves_nothing_behind(self):
        x = on_xla(4)
        before = (torch_xla._XLAC._get_ir_debug(), torch_xla._XLAC._xla_step_marker)

        def step():
            x.bfloat16()
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            audit(step)
        assert before == (torch_xla._XLAC._get_ir_debug(), torch_xla._XLAC._xla_step_marker)
        assert not torch.overrides._get_current_function_mode_stack()
        assert not torch.nn.modules.module._global_forward_hooks

    def test_nothing_is_recorded_outside(self):
        watch = Watch()
        with watch.watching():
            pass
        on_xla(4).bfloat16()
        assert (watch.step().records, watch.step().graphs) == ({}, ())


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import torch, torch_xla
from small_transformer import gradients, loss_of, model_and_data

model, *data = model_and_data(layers=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    loss = loss_of(model, *data, amp=True)
    loss.backward()
    optimizer.step()
    return loss

def wrong():
    raise RuntimeError("mine")

def stops():
    sys.exit(4)

import functools
partial = functools.partial(lambda a, b: a, 1)

if __name__ == "__main__":
    import os
    from castoff.audit import audit
    from ir_text import normalize_ir
    import json, re
    from pathlib import Path
    saved = Path(os.environ["XLA_SAVE_TENSORS_FILE"] + ".0")
    sizes = [saved.stat().st_size]
    kept = step()
    torch_xla.sync()
    sizes.append(saved.stat().st_size)
    del kept
    for parameter in model.parameters():
        parameter.grad = None
    report = audit(step)
    print(json.dumps([saved.read_text()[sizes[0]:sizes[1]], "\\n".join(report.graphs[0].ir)]))
"""


SHARDED = """
import numpy as np
import torch, torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model"))
linear = torch.nn.Linear(16, 8, bias=False, dtype=torch.bfloat16).to("xla")
model = SpmdFullyShardedDataParallel(
    linear, mesh=mesh, shard_output=lambda output, mesh: xs.mark_sharding(output, mesh, ("fsdp", None))
)
x = torch.randn(64, 16).to("xla")
xs.mark_sharding(x, mesh, ("fsdp", None))

def step():
    loss = model(x.bfloat16()).float().sum()
    loss.backward()
    return loss, [parameter.grad for parameter in model.parameters()]
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    root = HERE.parents[2]
    path.write_text(PROGRAM.format(paths=[str(root), str(root / "tests" / "ir")]))
    return path


def operations(ir):
    """What an IR graph computes, without numbers: its lines, sorted."""
    lines = re.findall(r"^\s*%\d+ = (\S+|\([^()]*\)) ([\w:]+)\((.*?)\)", ir, re.MULTILINE)
    return sorted((shape, op, operands.count("%")) for shape, op, operands in lines)


@pytest.mark.since("2.7", "placeholders")
def test_lines_are_the_programs_own_where_nothing_is_computed():
    from castoff.tpu.placeholders import nothing_computed

    def step():
        weight = on_xla(8, 8, dtype=BF16, requires_grad=True)
        loss = (weight.float() * 2).square().mean()
        loss.backward()
        return weight.grad

    with nothing_computed():
        report = audit(step)
    assert {cast.place.file for cast in report.floating if cast.place} == {str(HERE)}
    assert {cast.phase for cast in report.floating} == {"forward", "backward"}


def fault_of(program, function, folder):
    command = [sys.executable, WORKER, "xla", "shapes", program, function, "1", folder / "report.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == BAD_PROGRAM, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.passes_on_stock
class TestPrograms:
    def test_the_graph_is_the_one_that_runs_unwatched(self, program, tmp_path):
        environment = {**os.environ, "XLA_SAVE_TENSORS_FILE": str(tmp_path / "saved"), "XLA_SAVE_TENSORS_FMT": "text"}
        done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        unwatched, watched = map(operations, json.loads(done.stdout.splitlines()[-1]))
        assert unwatched == watched
        assert len(watched) > 100

    def test_the_worker(self, program, tmp_path):
        report = tmp_path / "report.json"
        command = [sys.executable, WORKER, "xla", "shapes", program, "step", "1", report]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(report.read_text())
        assert found["totals"]["casts"] == len([cast for cast in found["casts"] if cast["floating"]]) > 30
        for cast in found["casts"]:
            line = found["graphs"][cast["graph"]]["ir"][cast["line"]].strip()
            assert line == cast["ir"]["node"][0] and line.startswith(f"{cast['node']} = ")
            assert cast["phase"] != "unknown" and cast["place"] is not None

    def test_sharded_over_four_devices(self, tmp_path):
        program, report = tmp_path / "program.py", tmp_path / "report.json"
        program.write_text(SHARDED)
        command = [sys.executable, WORKER, "stablehlo", "values", program, "step", "1", report]
        environment = {**os.environ, "CPU_NUM_DEVICES": "4"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(report.read_text())
        assert [(graph["partitions"], len(graph["stablehlo"]) > 1000) for graph in found["graphs"]] == [(4, True)]
        told = [(cast["source"], cast["target"], cast["why"], cast["bytes"]) for cast in found["casts"]]
        # Bytes are those of all devices.
        assert told[:2] == [("f32", "bf16", "explicit", 64 * 16 * 6), ("bf16", "f32", "explicit", 64 * 8 * 6)]
        narrow = [(one["kind"], one["dtype"], one["length"], one["phase"]) for one in found["accumulations"]]
        assert [one for one in narrow if one[0] != "dot"] == [("all-reduce", "bf16", 4, "backward")]
        graph = Report.from_dict(found).graphs[0]
        # Each device casts a quarter of the inputs and of the results, forward and backward.
        assert graph.bytes_of_a_device() == (64 * 16 * 6 + 2 * 64 * 8 * 6) // 4

    @pytest.mark.parametrize(
        ("function", "found"),
        [
            (
                "wrong",
                r"program.py:17: RuntimeError: mine\nTraceback [^\n]*\n  File \"[^\"]*program.py\", line 17, in wrong",
            ),
            ("stops", r"program.py:20: SystemExit: 4\n"),
            (
                "partial",
                r"TypeError: partial\(b\): missing a required argument: 'b'; a step is called without arguments$",
            ),
        ],
    )
    def test_a_program_at_fault(self, program, tmp_path, function, found):
        fault = fault_of(program, function, tmp_path)
        assert re.match(found, fault["found"]), fault["found"]
        assert "castoff" not in fault["found"]
