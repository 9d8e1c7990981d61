"""``p.data = q`` under a live graph of p: patches/torch/data-setter."""

import os
import re
import subprocess
import sys
import threading

import pytest
import torch
from gradients import compiled_autograd

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


@pytest.fixture
def leaf(device):
    return lambda size=3: torch.ones(size, device=device, requires_grad=True)


def accumulator(w):
    return w.expand_as(w).grad_fn.next_functions[0][0]


class TestLiveGraph:
    @pytest.mark.fails_on_stock
    @pytest.mark.parametrize("dtype", [BF16, F64])
    def test_delivers_in_the_present_dtype(self, leaf, dtype):
        w = leaf()
        loss = (w * 2).sum()
        w.data = w.data.to(dtype)
        loss.backward()
        assert w.dtype is dtype and w.grad.dtype is dtype
        assert w.grad.tolist() == [2, 2, 2]

    @pytest.mark.fails_on_stock
    def test_two_graphs_one_from_before(self, leaf):
        w, seen = leaf(), []
        node = accumulator(w)
        node.register_prehook(lambda grads: seen.append(grads[0].dtype))
        before = (w * 2).sum()
        w.data = w.data.bfloat16()
        after = (w * 3).sum()
        before.backward()
        after.backward()
        assert seen == [BF16, BF16]
        assert w.grad.dtype is BF16 and w.grad.tolist() == [5, 5, 5]

    @pytest.mark.fails_on_stock
    def test_changed_in_the_middle_of_a_backward(self, leaf):
        w = leaf()
        y = w * 2

        def change(grad):
            w.data = w.data.bfloat16()

        y.register_hook(change)
        y.sum().backward()
        assert w.dtype is BF16 and w.grad.dtype is BF16

    @pytest.mark.passes_on_stock
    def test_there_and_back(self, leaf):
        w, seen = leaf(), []
        w.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.dtype))
        loss = (w * 2).sum()
        w.data = w.data.bfloat16()
        w.data = w.data.float()
        loss.backward()
        assert seen == [F32] and w.grad.tolist() == [2, 2, 2]

    @pytest.mark.fails_on_stock(until="2.10")
    def test_a_grad_dtype_goes_before_the_dtype(self, leaf):
        w = leaf()
        w.grad_dtype = F64
        loss = (w * 2).sum()
        w.data = w.data.bfloat16()
        loss.backward()
        assert w.grad_dtype is F64 and w.grad.dtype is F64

    @pytest.mark.fails_on_stock
    def test_autograd_grad(self, leaf):
        w = leaf()
        loss = (w * 2).sum()
        w.data = w.data.bfloat16()
        assert torch.autograd.grad(loss, [w])[0].dtype is BF16

    @pytest.mark.fails_on_stock
    def test_module_to(self, device):
        linear, seen = torch.nn.Linear(2, 2).to(device), []
        accumulator(linear.weight).register_hook(lambda inputs, outputs: seen.append(outputs[0].dtype))
        loss = linear(torch.ones(1, 2, device=device)).sum()
        linear.bfloat16()
        loss.backward()
        assert linear.weight.grad.dtype is BF16
        linear(torch.ones(1, 2, device=device, dtype=BF16)).sum().backward()
        assert linear.weight.grad.dtype is BF16

    @pytest.mark.since("2.6", "compiled autograd as a context of its own (compiled_autograd._enable)")
    def test_compiled_autograd(self):
        torch._dynamo.reset()
        w = torch.ones(3, requires_grad=True)
        for dtype in (BF16, F64, F32):
            loss = (w * 2).sum()
            w.grad = None
            w.data = w.data.to(dtype)
            with compiled_autograd("eager"):
                loss.backward()
            assert w.grad.dtype is dtype and w.grad.tolist() == [2, 2, 2]


def both_shapes(was, elements, now, more):
    """What the error says of a leaf of another shape; torch with its own grad_dtype says it in its own words."""
    if hasattr(getattr(torch._C, "TensorBase", None), "grad_dtype"):
        return rf"got \[{elements}\] but expected shape compatible with \[{more}\]"
    return rf"got {was}\[{elements}\] .* it was {was}\[{elements}\].* and is {now}\[{more}\]"


class TestShape:
    @pytest.mark.fails_on_stock
    def test_the_error_names_both_shapes(self, leaf):
        w = leaf(3)
        loss = (w * 2).sum()
        w.data = torch.ones(5, device=w.device, dtype=BF16)
        with pytest.raises(RuntimeError) as info:
            loss.backward()
        message = str(info.value)
        assert "MulBackward0 returned an invalid gradient at index 0 - got " in message
        assert re.search(both_shapes("Float", 3, "BFloat16", 5), message)
        assert message.count("invalid gradient") == 1
        assert w.grad is None
        (w * 2).sum().backward()
        assert w.grad.dtype is BF16 and list(w.grad.shape) == [5]

    @pytest.mark.fails_on_stock
    def test_the_next_graph_is_of_the_new_shape(self, leaf):
        w = leaf(3)
        node = accumulator(w)
        w.data = torch.ones(5, device=w.device)
        (w * 2).sum().backward()  # stock: "got [5] but expected shape compatible with [3]"
        assert list(w.grad.shape) == [5]
        assert accumulator(w) is node

    @pytest.mark.passes_on_stock
    @pytest.mark.parametrize(
        "device", ["cpu", pytest.param("xla", marks=pytest.mark.fails_on_stock("2.1"))], indirect=True
    )
    def test_away_and_back_as_fsdp_does(self, leaf):
        w, seen = leaf(2), []
        shard, whole = w.data, torch.ones(4, device=w.device, dtype=BF16)
        w.data = whole
        node = accumulator(w)
        node.register_hook(lambda inputs, outputs: seen.append(outputs[0].dtype))
        loss = (w * 2).sum()
        w.data = shard
        w.data = whole
        loss.backward()
        assert seen == [BF16]
        assert w.grad.dtype is BF16 and list(w.grad.shape) == [4]

    @pytest.mark.passes_on_stock
    @pytest.mark.parametrize("elements", [0, 1, 2])
    def test_a_released_parameter_gets_what_comes(self, leaf, elements):
        """A smaller tensor holds its place: offloaders take an empty one, or one of one element."""
        w = leaf(3)
        loss = (w * 2).sum()
        w.data = torch.empty(elements, device=w.device)
        loss.backward()
        assert list(w.grad.shape) == [3]


class TestTwoAssignments:
    @pytest.mark.passes_on_stock
    def test_the_second_one_changes_no_metadata(self, leaf):
        w = leaf()
        node = accumulator(w)
        w.data = w.data.bfloat16()
        w.data = torch.zeros(3, device=w.device, dtype=BF16)
        (w * 2).sum().backward()
        assert w.grad.dtype is BF16 and node is not None

    @pytest.mark.fails_on_stock
    def test_from_a_leaf_that_has_state_of_its_own(self, leaf):
        w, v = leaf(), leaf()
        graphs = [(w * 2).sum(), (v * 2).sum()]
        w.data = w.data.bfloat16()
        v.data = w.data
        for graph in graphs:
            graph.backward()
        assert (w.grad.dtype, v.grad.dtype) == (BF16, BF16)

    @pytest.mark.fails_on_stock
    @pytest.mark.parametrize("wanted", [F32, F64, None])
    def test_with_a_grad_dtype_the_error_is_the_same(self, leaf, wanted):
        w = leaf(4)
        w.grad_dtype = wanted
        loss = (w * 2).sum()
        w.data = torch.ones(8, device=w.device)
        with pytest.raises(RuntimeError, match=both_shapes("Float", 4, "(Float|Double)", 8)):
            loss.backward()

    @pytest.mark.fails_on_stock(until="2.10")
    def test_a_released_leaf_keeps_its_grad_dtype(self, leaf):
        w = leaf(4)
        w.grad_dtype = BF16
        loss = (w * 2).sum()
        w.data = torch.empty(0, device=w.device)
        loss.backward()
        assert w.grad.dtype is BF16 and list(w.grad.shape) == [4]

    @pytest.mark.fails_on_stock
    @pytest.mark.until("2.10", "check of castoff's that a gradient fits its leaf")
    def test_a_complex_leaf_that_became_real_is_an_error(self):
        w = torch.ones(3, dtype=torch.complex64, requires_grad=True)
        loss = (w * 2).abs().sum()
        w.data = torch.ones(3)
        with pytest.raises(RuntimeError, match=r"it was ComplexFloat\[3\].* and is Float\[3\]"):
            loss.backward()


TWO_DEVICES = """
import torch
import torch_xla
w = torch.ones(4, device="xla:0").requires_grad_()
node, seen = w.expand_as(w).grad_fn.next_functions[0][0], []
for _ in range(2):
    w.data = torch.ones(4, device="xla:1")
    assert w.expand_as(w).grad_fn.next_functions[0][0] is node
"""


@pytest.mark.fails_on_stock
def test_the_node_stays_over_a_change_of_device():
    pytest.importorskip("torch_xla")
    environment = {**os.environ, "CPU_NUM_DEVICES": "2"}
    subprocess.run([sys.executable, "-c", TWO_DEVICES], check=True, env=environment)


class TestHooks:
    """Every kind of hook, on a graph from before and on one from after the assignment."""

    @pytest.fixture(params=["before", "after"])
    def backward(self, request):
        def run(w):
            loss = (w * 2).sum() if request.param == "before" else None
            w.data = w.data.bfloat16()
            ((w * 2).sum() if loss is None else loss).backward()

        return run

    @pytest.mark.parametrize("kind", ["tensor", "post_accumulate", "node_pre", "node_post"])
    def test_fires_once_with_the_present_dtype(self, leaf, backward, kind):
        w, seen = leaf(), []
        node = accumulator(w)
        if kind == "tensor":
            w.register_hook(lambda grad: seen.append(grad.dtype))
        elif kind == "post_accumulate":
            w.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.dtype))
        elif kind == "node_pre":
            node.register_prehook(lambda grads: seen.append(grads[0].dtype))
        else:
            node.register_hook(lambda inputs, outputs: seen.append(outputs[0].dtype))
        backward(w)
        assert seen == [BF16]
        assert w.grad.dtype is BF16

    @pytest.mark.fails_on_stock
    def test_the_node_stays_the_same(self, leaf):
        w = leaf()
        node = accumulator(w)
        w.data = w.data.bfloat16()
        assert accumulator(w) is node


class TestMetadataUnchanged:
    @pytest.mark.passes_on_stock
    def test_nothing_happens(self, leaf):
        w, seen = leaf(), []
        accumulator_before = accumulator(w)
        accumulator_before.register_prehook(lambda grads: seen.append(grads[0].dtype))
        loss = (w * 2).sum()
        w.data = w.data * 3
        loss.backward()
        assert seen == [F32] and w.grad.tolist() == [2, 2, 2] and w.tolist() == [3, 3, 3]
        assert accumulator(w) is accumulator_before

    @pytest.mark.passes_on_stock
    def test_incompatible_types_are_refused_as_before(self, leaf):
        w = leaf()
        loss = (w * 2).sum()
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            w.data = torch.ones(3, 3).to_sparse()
        with pytest.raises(RuntimeError, match="floating point or complex"):
            w.data = torch.ones(3, device=w.device, dtype=torch.int32)
        loss.backward()
        assert w.grad.dtype is F32 and w.grad.tolist() == [2, 2, 2]


@pytest.mark.passes_on_stock
def test_threads():
    """Assignments racing backwards over the same leaf: the gradient has one of the two dtypes.

    Six dimensions: from there on a shape lives on the heap, and a torn one would crash. The forward
    passes are kept apart: they read the data itself, on stock as here.
    """
    w = torch.ones((2,) * 6, requires_grad=True)
    stop, forward, seen = threading.Event(), threading.Lock(), set()

    def backward():
        while not stop.is_set():
            with forward:
                loss = (w.float() * 2).sum()
            seen.add(torch.autograd.grad(loss, [w])[0].dtype)

    def assign():
        while not stop.is_set():
            with forward:
                w.data = w.data.bfloat16() if w.dtype is F32 else w.data.float()

    threads = [threading.Thread(target=target) for target in (backward, backward, assign)]
    for thread in threads:
        thread.start()
    stop.wait(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert seen and seen <= {BF16, F32}


@pytest.mark.fails_on_stock(until="2.10")
def test_a_grad_dtype_is_never_missing_while_another_thread_assigns():
    w = torch.ones(64, dtype=BF16, requires_grad=True)
    w.grad_dtype = F32
    datas = [torch.ones(64, dtype=BF16) for _ in range(2)]
    stop, forward, wrong, count = threading.Event(), threading.Lock(), [], 0

    def assign():
        turn = 0
        while not stop.is_set():
            with forward:
                w.data = datas[turn % 2]
            turn += 1

    thread = threading.Thread(target=assign)
    thread.start()
    try:
        for _ in range(5000):
            with forward:
                loss = (w.float() * 2).sum()
            (grad,) = torch.autograd.grad(loss, [w])
            count += 1
            if grad.dtype is not F32:
                wrong.append(grad.dtype)
    finally:
        stop.set()
        thread.join()
    assert count == 5000 and wrong == []


DDP = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 2)
    wrapped = torch.nn.parallel.DistributedDataParallel(module)
    wrapped(torch.ones(3, 4) * (rank + 1)).sum().backward()
    wrapped.zero_grad()
    module.bfloat16()
    try:
        wrapped(torch.ones(3, 4, dtype=torch.bfloat16) * (rank + 1)).sum().backward()
    except RuntimeError as error:
        found = f"says {str(error).splitlines()[0]}"
    else:
        found = f"gradient {module.weight.grad.float().sum().item()}"
    os.write(1, f"rank {rank}: {found}\\n".encode())  # one write, as the ranks share the pipe
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), 2)
"""


@pytest.mark.since("2.6", "bfloat16 in gloo")
@pytest.mark.fails_on_stock
@pytest.mark.slow
def test_ddp_reduces_or_says_so(tmp_path):
    """module.bfloat16() on a wrapped module: stock stops to all-reduce, and each rank goes its way."""
    program = tmp_path / "ddp.py"
    program.write_text(DDP)
    output = run_with_port(program)
    lines = sorted(line for line in output.splitlines() if line.startswith("rank"))
    assert len(lines) == 2, output
    reduced = "36.0"  # 2 outputs x 4 inputs x 3 rows x mean of the ranks' 1 and 2
    for line in lines:
        assert line.endswith((f"gradient {reduced}", "says Expected Float, got BFloat16")), lines


FSDP = """
import itertools, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

BF16, F32 = torch.bfloat16, torch.float32
PRECISIONS = {
    "none": None,
    "bf16, reduced in f32": MixedPrecision(param_dtype=BF16, reduce_dtype=F32),
    "bf16, kept": MixedPrecision(param_dtype=BF16, reduce_dtype=BF16, keep_low_precision_grads=True),
}

def work(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    strategies = (ShardingStrategy.NO_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD)
    for strategy, (name, precision), original in itertools.product(strategies, PRECISIONS.items(), (False, True)):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        wrapped = FullyShardedDataParallel(
            module, sharding_strategy=strategy, mixed_precision=precision,
            use_orig_params=original, device_id=torch.device("cpu"),
        )
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, foreach=False)
        loss = torch.tensor(0.0)  # gloo of torch 2.1 refuses bfloat16 before there is one
        try:
            for _ in range(3):
                optimizer.zero_grad()
                loss = wrapped(torch.ones(3, 4) * (rank + 1)).float().sum()
                loss.backward()
                if name != "bf16, kept":
                    optimizer.step()
            grads = [p.grad for p in wrapped.parameters() if p.grad is not None]
            found = [(str(grad.dtype), grad.float().sum().item()) for grad in grads]
        except Exception as error:
            found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if rank == 0:
            print("RESULT", strategy.name, name, original, loss.item(), found, flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), 2)
"""


def run_with_port(program, **environment):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    result = subprocess.run(
        [sys.executable, program, str(port)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_fsdp_is_as_without_the_topic(tmp_path):
    """Eighteen configurations of FSDP1, whose flat parameters change dtype and size twice a step."""
    program = tmp_path / "fsdp.py"
    program.write_text(FSDP)
    results = [
        [line for line in run_with_port(program, CASTOFF_DISABLE=off).splitlines() if line.startswith("RESULT")]
        for off in ("", "all")
    ]
    assert len(results[0]) == 18
    assert results[0] == results[1]


class AskedForItsSize(torch.Tensor):
    """A tensor subclass whose sizes are written in Python."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    asked = None  # called when torch asks for the sizes

    @staticmethod
    def __new__(cls, inner):
        self = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=True, dispatch_sizes_strides_policy="sizes"
        )
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.sym_size.default, torch.ops.aten.size.default):
            if cls.asked is not None:
                cls.asked()
            return args[0].inner.shape
        return func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))


@pytest.mark.fails_on_stock
@pytest.mark.since("2.6", "torch.autograd.graph.get_gradient_edge")
@pytest.mark.until("2.10", "lock of castoff's around an assignment")
def test_sizes_in_python_do_not_deadlock_with_a_thread_that_asks_for_the_grad_dtype(monkeypatch):
    """The assignment holds a lock while it asks for sizes, for which it needs the GIL."""
    w = AskedForItsSize(torch.ones(3, dtype=BF16))
    w.grad_dtype = F32
    edge = torch.autograd.graph.get_gradient_edge(w)  # keeps its accumulator
    asked, seen = threading.Event(), []

    def ask():
        asked.wait()
        seen.append(w.grad_dtype)  # waits for the lock

    def let_the_other_thread_ask():
        asked.set()
        threading.Event().wait(0.05)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    monkeypatch.setattr(AskedForItsSize, "asked", let_the_other_thread_ask)
    w.data = AskedForItsSize(torch.zeros(3, dtype=BF16))
    thread.join(timeout=20 if asked.is_set() else 0)  # on stock nobody asks, and it never ends
    assert seen == [F32] and edge.node is not None
