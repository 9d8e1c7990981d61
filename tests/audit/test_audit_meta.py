"""``castoff audit --meta``: steps on the meta device, against formulas and against real runs on the CPU."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import vit
from torch import nn
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from castoff.audit import worker
from castoff.audit.meta import audit_meta

pytestmark = pytest.mark.passes_on_stock

VIT = Path(vit.__file__)


def train(model, *data):
    model(*data).square().mean().backward()


def allocated_at_the_peak(function):
    """The most bytes that the CPU's allocator had given out at a time while a function ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = function()
    del kept

    def below(event):
        yield event
        for child in event.children:
            yield from below(child)

    roots = profiled.profiler.kineto_results.experimental_event_tree()
    events = [event for root in roots for event in below(root) if event.tag == _EventType.Allocation]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_time_ns):
        now += event.extra_fields.alloc_size
        peak = max(peak, now)
    return peak


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(64, 32)

    def forward(self, x):
        state = torch.zeros_like(x[0])
        for row in x:
            state = self.step(torch.cat([row, state], 1)).tanh()
        return state


class TestVit:
    @pytest.fixture(scope="class")
    def found(self):
        return audit_meta(lambda: vit.step)

    def test_well_under_a_second(self, found):
        start = time.process_time()  # what other tests do at the same time is not counted
        audit_meta(lambda: vit.step)
        assert time.process_time() - start < 1.0

    def test_flops(self, found):
        tokens, width, layers = 197, 768, 12
        forward = 2 * 196 * width * 3 * 16 * 16 + 2 * width * 1000
        forward += layers * (2 * tokens * width * 12 * width + 4 * tokens * tokens * width)
        assert found["flops"]["forward"] == forward * vit.BATCH
        # Of a product's two derivatives the one by the images is not needed.
        backward = 2 * forward - 2 * 196 * width * 3 * 16 * 16
        assert found["flops"]["backward"] == backward * vit.BATCH
        assert found["flops"]["total"] == sum(found["flops_by_module"].values())
        assert {f"Vit.layers.{n}.up" for n in range(12)} <= found["flops_by_module"].keys()

    def test_parameters(self, found):
        parameters = sum(p.numel() for p in vit.Vit().parameters())
        assert found["memory"]["parameter_bytes"] == found["memory"]["gradient_bytes"] == 4 * parameters

    def test_bytes_grow_with_the_batch(self, found):
        assert found["memory"]["peak_activation_bytes"] > 10**8 * vit.BATCH
        assert found["without_kernel"] == [] and found["totals"]["casts"] == 0

    def test_the_types_that_flow(self):
        found = audit_meta(lambda: vit.mixed)
        flow = {(step["from"], step["to"]) for step in found["dtype_flow"] if step["module"] == "Vit.head"}
        assert flow == {("f32", "f32")}
        flow = {(step["from"], step["to"]) for step in found["dtype_flow"] if step["module"] == "Vit.layers.3.up"}
        assert flow == {("bf16", "bf16")}
        casts = [cast for cast in found["casts"] if cast["module"].startswith("Vit")]
        assert [(cast["source"], cast["target"], cast["phase"], cast["why"]) for cast in casts] == [
            ("bf16", "f32", "forward", "explicit"),
            ("f32", "bf16", "backward", "explicit"),
        ]
        assert {cast["bytes"] for cast in casts} == {vit.BATCH * 197 * 768 * 6}
        assert casts[0]["place"] == {
            "file": str(VIT),
            "line": vit.mixed.__code__.co_firstlineno + 4,
            "function": "<lambda>",
        }


class TestMemory:
    """The peak of what a step allocates, on meta and on the CPU."""

    def models():
        yield (
            "mlp",
            lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64)),
            (128, 64),
        )
        yield "vit", lambda: vit.Vit(64, 3, 4, 32, 8, 10), (16, 3, 32, 32)
        yield (
            "residual",
            lambda: nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(392, 100)),
            (32, 8, 14, 14),
        )
        yield "recurrent", Recurrent, (24, 16, 32)

    @pytest.mark.parametrize(("make", "shape"), [pytest.param(*rest, id=name) for name, *rest in models()])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_within_5_percent_of_a_real_run(self, make, shape, dtype):
        model, data = make().to(dtype), torch.randn(shape, dtype=dtype)
        train(model, data)  # what the first run allocates for good is not part of a step
        model.zero_grad(set_to_none=True)
        real = allocated_at_the_peak(lambda: train(model, data))
        with torch.device("meta"):
            model, data = make().to(dtype), torch.randn(shape, dtype=dtype)
        found = audit_meta(lambda: lambda: train(model, data))["memory"]
        assert real > 10_000
        assert found["peak_bytes"] == pytest.approx(real, rel=0.05)


class TestResultsMadeAgain:
    """Of an operation that ran before on like arguments the meta kernel is not called again, where none can tell."""

    @pytest.fixture(scope="class")
    def calls(self):
        """Operators of this test's own, with their shapes: the names of those whose meta kernel ran."""
        library, calls = torch.library.Library("castoff_meta_audit", "DEF"), []

        def define(name, schema, kernel, **options):
            def counted(*args):
                calls.append(name)
                return kernel(*args)

            library.define(f"{name}{schema}", **options)
            library.impl(name, counted, "Meta")

        define("twice", "(Tensor x, Scalar by=2) -> Tensor", lambda x, by=2: torch.empty_like(x))
        define("alike", "(Tensor x) -> Tensor", lambda x: x.view(-1))  # aliases, as _unsafe_view, and does not say so
        define("pair", "(Tensor x) -> (Tensor, Tensor)", lambda x: (y := torch.empty_like(x), y.view(-1)))
        define("row", "(Tensor x) -> Tensor", lambda x: torch.empty_like(x)[1:])
        define("noise", "(Tensor x) -> Tensor", torch.empty_like, tags=torch.Tag.nondeterministic_seeded)
        define("change", "(Tensor(a!) x) -> Tensor(a!)", lambda x: x)
        define("note", "(Tensor(a!) x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(y))
        yield calls
        library._destroy()

    def of(self, calls, *arguments):
        """The names of the kernels that ran for calls of operators, each a name and its arguments."""
        calls.clear()
        audit_meta(lambda: lambda: [getattr(torch.ops.castoff_meta_audit, name)(*rest) for name, *rest in arguments])
        return list(calls)

    def test_once_for_like_arguments(self, calls):
        x, like, other = (torch.empty(size, device="meta") for size in ((2, 3), (2, 3), (3, 2)))
        assert self.of(calls, ("twice", x), ("twice", like)) == ["twice"]
        differ = [(other,), (other.t(),), (x.bfloat16(),), (x, 1), (x, 1.0), (x, True)]
        assert self.of(calls, ("twice", x), *(("twice", *arguments) for arguments in differ)) == ["twice"] * 7

    @pytest.mark.parametrize("name", ["alike", "pair", "row", "noise", "change"])
    def test_each_time(self, calls, name):
        x = torch.empty(2, 3, device="meta")
        assert self.of(calls, (name, x), (name, x)) == [name, name]

    def test_each_time_where_it_changes_an_argument(self, calls):
        x, y = torch.empty(2, device="meta"), torch.empty(2, device="meta")
        assert self.of(calls, ("note", x, y), ("note", x, y)) == ["note", "note"]

    def test_a_view_has_the_storage_of_its_base(self):
        def step():
            for _ in range(2):
                x = torch.empty(2, 3)
                for view in (torch.ops.aten._unsafe_view(x, [6]), x.view(6), x.t(), x.detach(), x.add_(1), x[:1]):
                    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
                assert (x + 1).untyped_storage()._cdata != x.untyped_storage()._cdata

        assert audit_meta(lambda: step)["memory"]["peak_activation_bytes"] == 4 * (6 + 6)

    def test_results_are_those_of_the_kernels(self):
        def results():
            x, n = torch.empty(2, 3, 4, requires_grad=True), torch.ones(3, dtype=torch.int64)
            torch.set_default_dtype(torch.float64)
            yield n / 2
            torch.set_default_dtype(torch.float32)
            yield from (n / 2, n * 2, n * 2.0, n * True)
            yield from (x.transpose(0, 2) * 2, x * 2, x.detach() * 2, x.sum(1, keepdim=True), x.max(1).indices)
            yield from torch.nn.functional.layer_norm(x, (4,), torch.ones(4), torch.ones(4)).unbind(2)
            yield torch.cat([x, x]).to(memory_format=torch.contiguous_format)

        def layouts():
            return [(y.shape, y.stride(), y.dtype, y.requires_grad) for _ in range(2) for y in results()]

        found = []
        audit_meta(lambda: lambda: found.append(layouts()))
        with torch.device("meta"):
            assert found == [layouts()]


class TestWithoutKernel:
    def test_named_and_guessed(self):
        def step():
            x = torch.randn(4, 8, requires_grad=True)
            picked = x[x > 0]
            scale = picked.detach().max().item()
            torch.bincount(torch.zeros(5, dtype=torch.int64))
            (picked * scale).sum().backward()
            assert x.grad.shape == x.shape

        found = audit_meta(lambda: step)
        assert {guess["op"]: guess["why"] for guess in found["without_kernel"]} == {
            "aten.index": "no meta kernel",
            "aten._local_scalar_dense": "its result is a value on the host",
            "aten.bincount": "no meta kernel",
        }
        assert all(guess["place"].startswith(Path(__file__).name) for guess in found["without_kernel"])

    def test_an_error_of_the_program_is_one(self):
        with pytest.raises(RuntimeError, match="same reduction dim"):
            audit_meta(lambda: lambda: torch.zeros(2, 3) @ torch.zeros(2, 3))


def test_the_worker(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, worker.__file__, "meta", "shapes", VIT, "step", "1", report]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["format"] == "castoff meta audit 1"


def test_casts_that_only_undo_another():
    def step():
        x = torch.randn(8, 8, dtype=torch.bfloat16)
        x.float().t().bfloat16()
        torch.randn(8).half().view(2, 4).float()
        return x + torch.randn(8, 8)

    found = audit_meta(lambda: step)
    assert [(cast["exactness"], cast["why"]) for cast in found["casts"]] == [
        ("exact widening", "explicit"),
        ("exact round trip", "explicit"),
        ("lossy narrowing", "explicit"),
        ("lossy round trip", "explicit"),
        ("exact widening", "op's math type"),
    ]
