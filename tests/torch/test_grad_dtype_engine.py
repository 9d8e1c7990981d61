"""What grad-dtype must not cost and not break: the engine around it, its threads and its memory."""

import functools
import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from gradients import Wide, backward_graphs_to, compiled_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def leaf(size=(3,), dtype=F32):
    return torch.ones(size, dtype=dtype, requires_grad=True)


@pytest.mark.fails_on_stock
def test_no_python_runs_on_the_backward_path():
    """Neither for tensors without a grad_dtype while others have one, nor for those that have one."""
    w, v = leaf(), leaf()
    w.grad_dtype = BF16
    loss = (w * v * 2).sum()
    engine, one = torch.autograd.Variable._execution_engine, torch.tensor(1.0)
    called = []

    def profile(frame, event, argument):
        if event == "call":
            called.append(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        engine.run_backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    finally:
        sys.setprofile(None)
    assert w.grad.dtype is BF16 and v.grad.dtype is F32
    assert called == []


def test_setting_grad_to_none_runs_no_python():
    w, v = leaf(), leaf()
    w.grad_dtype = BF16
    called = []
    sys.setprofile(lambda frame, event, argument: called.append(event) if event == "call" else None)
    try:
        v.grad = None
    finally:
        sys.setprofile(None)
    assert called == []


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("wanted", [BF16, None])
@pytest.mark.slow
def test_memory_stays_flat(wanted):
    """A million leaves that were given a grad_dtype, half of them views, leave nothing behind."""

    def make(count):
        base = torch.zeros(8)
        for _ in range(count):
            w = base[0:4].requires_grad_()
            w.grad_dtype = wanted
            v = torch.ones(64, requires_grad=True)
            v.grad_dtype = wanted
            v.grad = torch.ones(64, dtype=BF16)

    make(5_000)
    before = resident_bytes()
    make(500_000)
    assert resident_bytes() - before < 4 << 20  # a leak of one word a tensor would be 8 MB


def test_backward_memory_stays_flat():
    def steps(count):
        for _ in range(count):
            w = torch.ones(64, requires_grad=True)
            w.grad_dtype = BF16
            (w * 2).sum().backward()

    steps(2_000)
    before = resident_bytes()
    steps(50_000)
    assert resident_bytes() - before < 4 << 20


@pytest.mark.fails_on_stock
def test_threads_with_leaves_of_their_own():
    leaves = [leaf() for _ in range(200)]
    wrong = []

    def run(first):
        for turn in range(50):
            for i in range(first, len(leaves), 4):
                w = leaves[i]
                wanted = (BF16, None, F16)[(turn + i) % 3]
                w.grad = None
                w.grad_dtype = wanted
                (w * 2).sum().backward()
                if w.grad.dtype is not (wanted or F32):
                    wrong.append((i, turn, w.grad.dtype))

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.fails_on_stock
def test_set_while_backwards_run():
    """A grad_dtype that other threads keep changing: every gradient has one of the dtypes asked for.

    Six dimensions: from there on a shape lives on the heap, and a torn one would crash.
    """
    w = leaf((2, 2, 2, 2, 2, 2), dtype=F32)
    stop, errors, seen = threading.Event(), [], set()
    dtypes = (BF16, F16, F32, None)

    def backward():
        while not stop.is_set():
            try:
                (grad,) = torch.autograd.grad((w.float() * 2).sum(), [w])
                seen.add(grad.dtype)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

    def change():
        turn = 0
        while not stop.is_set():
            w.grad_dtype = dtypes[turn % len(dtypes)]
            turn += 1

    threads = [threading.Thread(target=target) for target in (backward, backward, change, change)]
    for thread in threads:
        thread.start()
    stop.wait(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert seen <= {BF16, F16, F32} and len(seen) > 1


def test_an_error_leaves_the_engine_usable():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            return torch.ones(4, dtype=BF16)

    w = leaf()
    w.grad_dtype = None
    with pytest.raises(RuntimeError, match="WrongBackward returned an invalid gradient at index 0"):
        Wrong.apply(w).backward()
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("wanted", [BF16, F32, None])
def test_fake_tensors_take_it_over(wanted):
    w = torch.nn.Parameter(torch.ones(3))
    w.grad_dtype = wanted
    w.grad = torch.ones(3, dtype=wanted or BF16)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(w)
        assert fake.grad_dtype is wanted
        assert fake.grad.dtype is (wanted or BF16)


@pytest.mark.fails_on_stock
def test_a_fake_leaf_that_was_made_with_a_view_of_it_takes_it_over():
    w = torch.ones(3, 2, requires_grad=True)
    w.grad_dtype = BF16
    real_view = w.t()
    with FakeTensorMode() as mode:
        view = mode.from_tensor(real_view)
        fake = mode.from_tensor(w)
    assert view._base is fake
    assert fake.grad_dtype is BF16


@pytest.mark.fails_on_stock
def test_an_argument_of_a_reentrant_checkpoint_takes_it_over():
    """The backward within the checkpoint rounds nothing on its way to the leaf."""
    w = torch.full((3,), 1 + 2**-7, dtype=BF16, requires_grad=True)
    w.grad_dtype = F32
    x = torch.full((3,), 1 + 2**-20)
    checkpoint(lambda x, w: x * w, x, w, use_reentrant=True).sum().backward()
    assert w.grad.tolist() == x.tolist()


@pytest.mark.fails_on_stock
def test_the_gradient_of_a_broadcast_bias_is_a_wide_sum():
    """4096 gradients of 1 + 2^-7: their sum is no bfloat16."""
    x = torch.zeros(4096, 1, dtype=BF16)
    bias = torch.zeros(1, dtype=BF16, requires_grad=True)
    bias.grad_dtype = F32

    class Narrow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, b):
            return x + b

        @staticmethod
        def backward(ctx, grad):
            return grad

    grad = torch.full((4096, 1), 1 + 2**-7, dtype=BF16)
    Narrow.apply(bias).backward(grad)
    assert bias.grad.dtype is F32
    assert bias.grad.item() == 4096 * (1 + 2**-7)


@pytest.mark.since("2.6", "a way to copy the metadata of a nested tensor")
@pytest.mark.parametrize("wanted, arrives", [(F64, F64), (None, F32), (F32, F32)])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_leaves(wanted, arrives):
    w = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)], requires_grad=True)
    w.grad_dtype = wanted
    (w * 2).to_padded_tensor(0.0).sum().backward()
    assert w.grad_dtype is wanted and w.grad.is_nested and w.grad.dtype is arrives


@pytest.mark.fails_on_stock
def test_a_gradient_of_a_subclass_can_be_assigned():
    class Sub(torch.Tensor):
        pass

    w = leaf(dtype=BF16)
    w.grad_dtype = F32
    w.grad = torch.ones(3).as_subclass(Sub)
    assert type(w.grad) is Sub and w.grad.dtype is F32


def test_the_setter_outlives_a_reload():
    program = """
import gc, importlib, torch
w = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
w.grad_dtype = torch.float32
importlib.reload(torch._grad_dtype)
gc.collect()
others = [lambda a, b: 1 for _ in range(1000)]
w.grad = torch.ones(2)
assert w.grad.dtype is torch.float32
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.since("2.6", "compiled autograd as a context of its own (compiled_autograd._enable)")
def test_a_sparse_gradient_in_a_compiled_backward():
    embedding = torch.nn.Embedding(4, 2, sparse=True, dtype=BF16)
    embedding.weight.grad_dtype = F32
    for count in (1, 2):
        loss = embedding(torch.tensor([1, 2])).sum()
        with backward_graphs_to(lambda graph: graph):
            loss.backward()
        assert embedding.weight.grad.is_sparse and embedding.weight.grad.dtype is F32
        assert embedding.weight.grad.to_dense()[1].tolist() == [count, count]


@pytest.mark.since("2.6", "compiled autograd as a context of its own (compiled_autograd._enable)")
class TestCompiledAutograd:
    """Compiled autograd and AOTAutograd. torch 2.13 refuses most of these; here they work."""

    @pytest.fixture(autouse=True)
    def fresh(self):
        torch._dynamo.reset()

    @pytest.fixture(params=["eager", "aot_eager"])
    def compiled(self, request):
        return functools.partial(compiled_autograd, request.param)

    @pytest.mark.parametrize("wanted", [BF16, F32, None])
    def test_backward_twice(self, compiled, wanted):
        w = leaf()
        w.grad_dtype = wanted
        for count in (1, 2):
            loss = (w * 1.01).sum()
            with compiled():
                loss.backward()
            assert w.grad.dtype is (wanted or F32)
            expected = count * torch.full((3,), 1.01).to(wanted or F32)
            assert torch.equal(w.grad, expected)

    @pytest.mark.fails_on_stock
    def test_the_cache_knows_the_grad_dtype(self, compiled):
        w, seen = leaf(), []
        for wanted in (BF16, F16, None, F32, BF16):
            w.grad = None
            w.grad_dtype = wanted
            loss = (w * 1.01).sum()
            with compiled():
                loss.backward()
            seen.append(w.grad.dtype)
        assert seen == [BF16, F16, F32, F32, BF16]

    @pytest.mark.fails_on_stock
    @pytest.mark.parametrize("wanted, arrives", [(F32, F32), (None, F32)])
    def test_a_custom_function_is_not_rounded(self, wanted, arrives):
        w = leaf(dtype=BF16)
        w.grad_dtype = wanted
        loss = Wide.apply(w)
        with compiled_autograd("eager"):
            loss.backward()
        assert w.grad.dtype is arrives
        assert torch.equal(w.grad, torch.full((3,), 1.01))

    @pytest.mark.fails_on_stock
    def test_hooks(self, compiled):
        w, seen = leaf(), []
        w.grad_dtype = BF16
        w.register_hook(lambda grad: grad * 2)
        w.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.dtype))
        loss = (w * 1.0).sum()
        with compiled():
            loss.backward()
        assert seen == [BF16]
        assert w.grad.dtype is BF16 and w.grad.tolist() == [2, 2, 2]

    @pytest.mark.fails_on_stock
    def test_autograd_grad(self, compiled):
        w = leaf()
        w.grad_dtype = BF16
        loss = (w * 2).sum()
        with compiled():
            (grad,) = torch.autograd.grad(loss, [w])
        assert grad.dtype is BF16

    @pytest.mark.parametrize("wanted", [BF16, None])
    def test_a_compiled_module(self, wanted):
        linear = torch.nn.Linear(3, 3)
        linear.weight.grad_dtype = wanted
        module = torch.compile(linear, backend="aot_eager")
        for _ in range(2):
            module(torch.ones(2, 3)).sum().backward()
        assert linear.weight.grad.dtype is (wanted or F32)
        assert torch.equal(linear.weight.grad.float(), torch.full((3, 3), 4.0))

    @pytest.mark.fails_on_stock
    @pytest.mark.since("2.6", "guards that functions can be added to")
    def test_a_compiled_function_is_compiled_again_for_another_grad_dtype(self):
        """Once for each, by whichever tensor it was compiled for first."""
        from torch._dynamo.testing import CompileCounterWithBackend

        leaf().grad_dtype = BF16  # what was compiled before the first one is forgotten
        x = torch.full((3,), 1.5)
        for first in (None, F32):
            counter = CompileCounterWithBackend("aot_eager")
            function = torch.compile(lambda x, w: (x * w.float()).sum(), backend=counter)
            for wanted in (first, F32, None, F32):
                w = leaf(dtype=BF16)
                if wanted is not None:
                    w.grad_dtype = wanted
                function(x, w).backward()
                assert w.grad.dtype is (wanted or BF16)
                assert torch.equal(w.grad.float(), x)
            assert counter.frame_count == 2

    @pytest.mark.since("2.8", "call_accumulate_grad in the graph of a compiled backward")
    def test_a_graph_without_it_is_stock(self):
        """The graph of a backward that uses no grad_dtype holds what stock's holds, to the letter."""
        graphs = []

        def keep(graph):
            graphs.append(graph.print_readable(print_output=False))
            return graph

        w = leaf()
        loss = (w * 2).sum()
        with backward_graphs_to(keep):
            loss.backward()
        calls = [
            line.split("call_accumulate_grad(")[1] for line in graphs[0].splitlines() if "call_accumulate_grad(" in line
        ]
        assert len(calls) == 1 and calls[0].split(")")[0].endswith("False")
        assert calls[0].count(",") == 2
