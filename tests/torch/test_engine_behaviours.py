"""What the autograd engine does on stock wheels, and a patched one has to keep.

Every test here runs twice on patched wheels: with no grad_dtype in the process, and with one in use on a
tensor that the test has nothing to do with. Neither may show.
"""

import collections
import itertools
import re
import threading

import pytest
import torch
from gradients import backward_graphs_to, compiled_autograd
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.passes_on_stock


@pytest.fixture(autouse=True, params=["idle", "in use"] if hasattr(torch.Tensor, "grad_dtype") else ["idle"])
def grad_dtype_elsewhere(request):
    if request.param == "idle":
        yield
        return
    other = torch.ones(3, requires_grad=True)
    other.grad_dtype = torch.bfloat16
    loss = (other * 2).sum()
    yield
    loss.backward()  # it was in use all the time, and still is
    assert other.grad.dtype is torch.bfloat16


@pytest.fixture
def xla():
    return pytest.importorskip("torch_xla").device()


@pytest.fixture
def leaf(device):
    return lambda *size: torch.ones(size or (3,), device=device, requires_grad=True)


def note(log, name):
    """A hook that logs that it ran, and changes nothing."""
    return lambda *_: log.append(name)


def accumulator(w):
    return w.expand_as(w).grad_fn.next_functions[0][0]


class Recorder(TorchDispatchMode):
    """Counts the matrix products, and notes which autograd node each operator runs under."""

    def __init__(self):
        super().__init__()
        self.products = collections.Counter()
        self.nodes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in {"mm", "addmm", "bmm", "matmul"}:
            self.products[name] += 1
        node = torch._C._current_autograd_node()
        self.nodes.append((name, node and node.name()))
        return func(*args, **(kwargs or {}))


def products(call):
    """The matrix products of ``call()``, and what it returned."""
    with Recorder() as recorder:
        result = call()
    return dict(recorder.products), result


# ---- compiled autograd


@pytest.mark.since("2.9", "calls of validate_outputs and of nodes in compiled autograd's graphs")
class TestCompiledAutograd:
    @pytest.fixture(autouse=True)
    def fresh(self):
        def reset():
            torch._dynamo.reset()
            torch._dynamo.compiled_autograd.reset()

        reset()
        yield
        reset()

    @pytest.fixture
    def captures(self):
        """The calls that each captured graph makes to the engine, without the unpacking of sizes."""
        return []

    @pytest.fixture
    def backward(self, captures):
        def compiler(graph):
            text = graph.print_readable(print_output=False)
            names = re.findall(r" = torch__dynamo_(?:compiled_autograd_ops|external_utils)_(\w+)\(", text)
            captures.append([name for name in names if "unwrap" not in name])
            return graph

        def run(loss, dynamic=True):
            with backward_graphs_to(compiler, dynamic=dynamic):
                loss.backward()

        return run

    def test_every_node_is_followed_by_validate_outputs(self, leaf, backward, captures):
        x, w = leaf(3, 4), leaf(4)
        backward((x * w).sin().sum())
        eager_x, eager_w = leaf(3, 4), leaf(4)
        (eager_x * eager_w).sin().sum().backward()
        assert captures == [
            [
                "validate_outputs",  # of the root
                "SumBackward0",
                "validate_outputs",
                "SinBackward0",
                "validate_outputs",
                "MulBackward0",
                "validate_outputs",
                "call_accumulate_grad",
                "call_accumulate_grad",
                "_exec_final_callbacks_stub",
            ]
        ]
        assert torch.equal(x.grad, eager_x.grad) and torch.equal(w.grad, eager_w.grad)

    def test_validate_outputs_casts_in_the_graph(self, leaf, backward, captures):
        x, w = leaf(), leaf()
        backward((x.bfloat16() * 2 * w).sum())
        assert captures[0].count("validate_outputs") == 5
        assert x.grad.dtype is w.grad.dtype is torch.float32
        assert x.grad.tolist() == [2, 2, 2]

    def test_hooks(self, leaf, backward, captures):
        def run(backward):
            log, w = [], leaf()
            a = w * 2
            a.register_hook(lambda grad: [log.append("tensor hook"), grad * 5][1])
            a.grad_fn.register_prehook(note(log, "pre-hook"))
            a.grad_fn.register_hook(note(log, "post-hook"))
            w.register_hook(note(log, "leaf"))
            w.register_post_accumulate_grad_hook(note(log, "accumulated"))
            backward(a.sum())
            return log, w.grad.tolist()

        assert run(backward) == run(torch.Tensor.backward)
        assert run(backward) == (["tensor hook", "pre-hook", "post-hook", "leaf", "accumulated"], [10, 10, 10])
        assert len(captures) == 1
        assert captures[0] == [
            "validate_outputs",
            "SumBackward0",
            "validate_outputs",
            "call_hook",
            "call_hook",
            "MulBackward0",
            "validate_outputs",
            "call_hook",
            "call_hook",
            "call_accumulate_grad",
            "call_hook",
            "_exec_final_callbacks_stub",
        ]

    def test_cached_across_calls(self, leaf, backward, captures):
        w = leaf()
        for number in (2, 2, 3, 2):
            w.grad = None
            backward((w * number).sum())
            assert w.grad.tolist() == [number] * 3
        assert len(captures) == 1
        for _ in range(3):  # to accumulate is another graph, and that one is cached as well
            backward((w * 2).sum())
        assert len(captures) == 2
        assert w.grad.tolist() == [8, 8, 8]
        w.grad = None
        backward((w * 2).sin().sum())
        assert len(captures) == 3
        w.grad = None
        backward((w * 2).sum())
        assert len(captures) == 3

    @pytest.mark.parametrize(("dynamic", "expected"), [(True, [3]), (False, [3, 4])])
    def test_sizes_become_dynamic(self, leaf, backward, captures, dynamic, expected):
        """Dynamic from the start: one capture. Else the second size makes them so."""
        captured_at = []
        for size in (3, 4, 5, 6, 3):
            x = leaf(size, 4)
            before = len(captures)
            backward((x * leaf(4)).sin().sum(), dynamic)
            captured_at += [size] * (len(captures) - before)
            assert x.grad.shape == x.shape
        assert captured_at == expected

    @torch._dynamo.config.patch(automatic_dynamic_shapes=True)  # torch_xla switches it off at import
    def test_compiled_once_for_all_sizes_from_the_third_on(self):
        """Through Dynamo, which compiles what was captured, as one graph."""
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph

        def double(grad):
            return grad * 2

        counts = []
        for size in (3, 4, 5, 6, 7, 3):
            x = torch.ones(size, 4, requires_grad=True)
            w = torch.ones(4, requires_grad=True)
            w.register_hook(double)
            loss = (x * w).sum()
            with compiled_autograd(backend):
                loss.backward()
            assert w.grad.tolist() == [2 * size] * 4
            counts.append(len(compiled))
        assert counts == [1, 2, 2, 2, 2, 2]


# ---- which thread, which first


class Spread(torch.autograd.Function):
    """One node with an output on each of ``devices``; it notes the thread of its backward."""

    @staticmethod
    def forward(ctx, x, devices, threads):
        ctx.threads = threads
        return tuple(torch.empty(3, device=device) for device in devices)

    @staticmethod
    def backward(ctx, *grads):
        ctx.threads.append(threading.get_ident())
        return torch.ones(3), None, None


class TestQueues:
    @pytest.fixture
    def threads(self, xla):
        """The thread of the caller, whose queue serves the CPU and meta tensors, and the one of XLA's."""
        seen = []
        Spread.apply(torch.ones(3, requires_grad=True), [xla], seen)[0].sum().backward()
        assert seen[0] != threading.get_ident()
        return {"cpu": threading.get_ident(), "xla": seen[0]}

    @pytest.mark.parametrize(
        ("devices", "expected"),
        [
            (("cpu",), "cpu"),
            (("meta",), "cpu"),
            (("cpu", "xla"), "xla"),  # outputs on the CPU have no say
            (("xla", "cpu"), "xla"),
            (("meta", "xla"), "cpu"),  # the first of the others decides
            (("xla", "meta"), "xla"),
            (("cpu", "meta", "xla"), "cpu"),
            (("cpu", "xla", "meta"), "xla"),
        ],
        ids=str,
    )
    def test_the_first_device_that_is_not_the_cpu_queues_a_node(self, xla, threads, devices, expected):
        seen = []
        x = torch.ones(3, requires_grad=True)
        outputs = Spread.apply(x, [xla if device == "xla" else device for device in devices], seen)
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
        assert seen == [threads[expected]]
        assert x.grad.tolist() == [1, 1, 1]

    @pytest.mark.since("2.6", "queues chosen by all outputs of a node")
    @pytest.mark.parametrize("used", [0, 1])
    def test_outputs_without_a_gradient_have_their_say(self, xla, threads, used):
        """It is what the forward pass made that decides, not which gradients arrive."""
        seen = []
        output = Spread.apply(torch.ones(3, requires_grad=True), ["cpu", xla], seen)[used]
        output.sum().backward()
        assert seen == [threads["xla"]]


class TestSequenceNumbers:
    @pytest.mark.since("2.6", "Node._set_sequence_nr")
    def test_a_higher_one_runs_first(self, leaf):
        order, w = [], leaf()
        first, second = w * 2, w * 3
        loss = (first + second).sum()
        first.grad_fn.register_prehook(note(order, "first"))
        second.grad_fn.register_prehook(note(order, "second"))
        assert first.grad_fn._sequence_nr() < second.grad_fn._sequence_nr()
        loss.backward(retain_graph=True)
        assert order == ["second", "first"]  # the last made is the first to run
        first.grad_fn._set_sequence_nr(second.grad_fn._sequence_nr() + 1)
        order.clear()
        loss.backward(retain_graph=True)
        assert order == ["first", "second"]
        assert w.grad.tolist() == [10, 10, 10]

    @pytest.mark.since("2.6", "Node._set_sequence_nr")
    def test_no_node_runs_before_all_of_its_gradients_are_there(self, leaf):
        order, w = [], leaf()
        a = w * 2
        b = a * 3
        loss = (a + b).sum()
        a.grad_fn.register_prehook(lambda grads: order.append(("a", grads[0].tolist())))
        b.grad_fn.register_prehook(lambda grads: order.append(("b", grads[0].tolist())))
        a.grad_fn._set_sequence_nr(loss.grad_fn._sequence_nr() + 1)
        loss.backward()
        assert order == [("b", [1, 1, 1]), ("a", [4, 4, 4])]

    def test_accumulators_run_as_soon_as_they_can(self, leaf):
        order, v, w = [], leaf(), leaf()
        a = v * 2
        loss = (a * w).sum()
        a.grad_fn.register_prehook(note(order, "a"))
        w.register_hook(note(order, "w"))
        assert accumulator(w)._sequence_nr() == 2**64 - 1
        loss.backward()
        assert order == ["w", "a"]


# ---- hooks


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 + second * 3


class TestRetainGrad:
    def test_follows_the_tensor_through_in_place_operations(self, leaf):
        """The gradient kept is the one of the last value; a tensor hook stays where it was registered."""
        seen, w = {}, leaf()
        a = w * 1
        a.register_hook(lambda grad: seen.update(before=grad.tolist()))
        a.retain_grad()
        a.mul_(3)
        a.register_hook(lambda grad: seen.update(between=grad.tolist()))
        a.mul_(4)
        (a * 5).sum().backward()
        assert seen == {"before": [60] * 3, "between": [20] * 3}
        assert a.grad.tolist() == [5] * 3
        assert w.grad.tolist() == [60] * 3

    @pytest.mark.since("2.6", "gradients retained across a change through a view")
    def test_through_a_view(self, leaf):
        w = leaf(4)
        a = w * 1
        a.retain_grad()
        a[:2].mul_(3)
        (a * 5).sum().backward()
        assert a.grad.tolist() == [5] * 4
        assert w.grad.tolist() == [15, 15, 5, 5]

    def test_asked_for_twice(self, leaf):
        a = leaf() * 2
        a.retain_grad()
        a.retain_grad()
        a.sum().backward()
        assert a.grad.tolist() == [1] * 3 and a.retains_grad

    def test_several_outputs(self, leaf):
        w = leaf()
        first, second = Pair.apply(w)
        first.retain_grad()
        second.retain_grad()
        (first * 10 + second * 100).sum().backward()
        assert first.grad.tolist() == [10] * 3 and second.grad.tolist() == [100] * 3
        assert w.grad.tolist() == [320] * 3

    def test_several_outputs_one_changed_in_place(self, leaf):
        w = leaf()
        first, second = Pair.apply(w)
        first.retain_grad()
        second.retain_grad()
        first.mul_(7)
        (first * 10 + second * 100).sum().backward()
        assert first.grad.tolist() == [10] * 3 and second.grad.tolist() == [100] * 3
        assert w.grad.tolist() == [440] * 3

    def test_one_of_several_outputs(self, leaf):
        w = leaf(2)
        first, second = w.unbind(0)
        second.retain_grad()
        (first * 3 + second * 4).backward()
        assert second.grad.item() == 4 and w.grad.tolist() == [3, 4]


class TestHookOrder:
    @pytest.fixture
    def log(self):
        return []

    @pytest.fixture
    def tensors(self, leaf, log):
        """``a = w * 2`` with every kind of hook on both; registered in an order that is not the one they run in."""
        w = leaf()
        a = w * 2
        a.grad_fn.register_hook(note(log, "post-hook"))
        a.grad_fn.register_prehook(lambda grads: log.append(("pre-hook", grads[0].tolist(), a.grad is not None)))
        a.retain_grad()
        a.register_hook(lambda grad: log.append(("tensor hook 1", grad.tolist(), a.grad is not None)))
        a.register_hook(lambda grad: [log.append(("tensor hook 2", a.grad is not None)), grad * 5][1])
        node = accumulator(w)
        w.register_post_accumulate_grad_hook(lambda w: log.append(("leaf, accumulated", w.grad is not None)))
        node.register_hook(lambda *_: log.append(("leaf, post-hook", w.grad is not None)))
        node.register_prehook(lambda grads: log.append(("leaf, pre-hook", w.grad is not None)))
        w.register_hook(lambda grad: log.append(("leaf, tensor hook", grad.tolist())))
        yield w, a
        del node

    TENSOR_HOOKS = (("tensor hook 1", [1, 1, 1], False), ("tensor hook 2", False))
    OF_THE_LEAF = (
        ("leaf, tensor hook", [10, 10, 10]),
        ("leaf, pre-hook", False),
        ("leaf, accumulated", True),
        ("leaf, post-hook", True),
    )
    ALL = (*TENSOR_HOOKS, ("pre-hook", [5, 5, 5], True), "post-hook", *OF_THE_LEAF)

    def test_backward(self, tensors, log):
        """Tensor hooks, then retain_grad, which keeps what they return, then the node's own."""
        w, a = tensors
        a.sum().backward()
        assert tuple(log) == self.ALL
        assert a.grad.tolist() == [5] * 3 and w.grad.tolist() == [10] * 3

    def test_backward_for_inputs(self, tensors, log):
        w, a = tensors
        a.sum().backward(inputs=[w])
        assert tuple(log) == self.ALL
        assert a.grad.tolist() == [5] * 3 and w.grad.tolist() == [10] * 3

    def test_grad_of_a_tensor_in_the_middle(self, tensors, log):
        """Its tensor hooks run, and the node that made it does not."""
        w, a = tensors
        (grad,) = torch.autograd.grad(a.sum(), [a])
        assert tuple(log) == self.TENSOR_HOOKS
        assert grad.tolist() == a.grad.tolist() == [5] * 3 and w.grad is None

    def test_grad_of_a_leaf(self, tensors, log):
        w, a = tensors
        (grad,) = torch.autograd.grad(a.sum(), [w])
        assert tuple(log) == (*self.ALL[:4], self.OF_THE_LEAF[0])
        assert grad.tolist() == [10] * 3 and w.grad is None

    def test_what_a_hook_returns_is_cast_to_nothing_else(self, leaf):
        w = leaf()
        a = w * 2
        a.register_hook(lambda grad: grad.double())
        with pytest.raises(RuntimeError, match="hook"):
            a.sum().backward()
        assert w.grad is None


# ---- the current node


class TestCurrentNode:
    def test_in_every_operator_of_backward(self, leaf):
        a, b = leaf(2, 3), leaf(3, 4)
        loss = (a @ b).sin().sum()
        with Recorder() as recorder:
            loss.backward()
        nodes = {name for _, name in recorder.nodes}
        assert {"SumBackward0", "SinBackward0", "MmBackward0"} <= nodes
        assert [node for op, node in recorder.nodes if op == "mm"] == ["MmBackward0"] * 2
        assert {node for op, node in recorder.nodes if op == "cos"} == {"SinBackward0"}
        assert torch._C._current_autograd_node() is None

    @pytest.mark.parametrize("anomaly", [False, True])
    def test_in_a_function(self, leaf, anomaly):
        seen = []

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                inner = torch.ones(3, device=grad.device, requires_grad=True)
                seen.append(torch._C._current_autograd_node())
                with torch.enable_grad():
                    product = inner * 3
                product.register_hook(lambda grad: seen.append(torch._C._current_autograd_node()))
                torch.autograd.grad(product.sum(), [inner])  # a backward within the backward
                seen.append(torch._C._current_autograd_node())
                return grad * 2

        w = leaf()
        with torch.autograd.set_detect_anomaly(anomaly, check_nan=False):
            output = Double.apply(w)
            (grad,) = torch.autograd.grad(output.square().sum(), [w], create_graph=True)
        outer, inner, again = seen
        assert outer is again is output.grad_fn
        assert inner.name() == "MulBackward0"
        if anomaly:
            assert "Double.apply(w)" in "".join(outer.metadata["traceback_"])
            assert grad.grad_fn.metadata["parent_"] is outer
        else:
            assert not outer.metadata and not grad.grad_fn.metadata
        assert torch._C._current_autograd_node() is None

    @pytest.mark.filterwarnings("ignore:Error detected in MulBackward0")  # how anomaly mode says it
    @pytest.mark.parametrize("anomaly", [False, True])
    def test_after_an_error(self, leaf, anomaly):
        w = leaf()
        a = w * 2

        def fail(grad):
            raise ValueError("made to fail")

        a.register_hook(fail)
        with (
            torch.autograd.set_detect_anomaly(anomaly, check_nan=False),
            pytest.raises(ValueError, match="made to fail"),
        ):
            a.sum().backward()
        assert torch._C._current_autograd_node() is None
        (w * 3).sum().backward()
        assert w.grad.tolist() == [3] * 3


# ---- nothing is computed that nobody asked for


class TestNeededGradients:
    @pytest.mark.parametrize("wanted", ["a", "b", "ab"])
    @pytest.mark.parametrize("form", ["grad", "backward"])
    def test_one_input_of_a_matmul(self, leaf, wanted, form):
        tensors = {"a": leaf(2, 3), "b": leaf(3, 4)}
        loss = (tensors["a"] @ tensors["b"]).sum()
        inputs = [tensors[name] for name in wanted]
        if form == "grad":
            counted, _ = products(lambda: torch.autograd.grad(loss, inputs))
        else:
            counted, _ = products(lambda: loss.backward(inputs=inputs))
            assert {name for name, tensor in tensors.items() if tensor.grad is not None} == set(wanted)
        assert counted == {"mm": len(wanted)}

    @pytest.fixture
    def network(self, device):
        """Six hidden layers as in pytorch#82544; the count does not depend on the batch, so it is small."""
        torch.manual_seed(0)
        widths = [8, *[16] * 6]
        layers = [
            layer
            for narrow, wide in itertools.pairwise(widths)
            for layer in (torch.nn.Linear(narrow, wide), torch.nn.ReLU())
        ]
        return torch.nn.Sequential(*layers, torch.nn.Linear(16, 1)).to(device)

    @pytest.fixture
    def batch(self, device):
        return torch.randn(100, 8).to(device)

    def test_training_on_the_gradient_of_the_input(self, network, batch):
        batch.requires_grad_()
        counted, energy = products(lambda: network(batch).sum())
        assert counted == {"addmm": 7}
        counted, (forces,) = products(lambda: torch.autograd.grad(energy, [batch], create_graph=True))
        assert counted == {"mm": 7}  # none for the weights
        counted, _ = products(lambda: forces.square().sum().backward())
        assert counted == {"mm": 25}

    def test_hessian_vector_product(self, network, batch):
        parameters = list(network.parameters())
        loss = network(batch).square().sum()
        counted, gradients = products(lambda: torch.autograd.grad(loss, parameters, create_graph=True))
        assert counted == {"mm": 13}  # none for the batch
        product = sum(gradient.sum() for gradient in gradients)
        counted, _ = products(lambda: torch.autograd.grad(product, parameters, retain_graph=True))
        assert counted == {"mm": 38}
        counted, _ = products(lambda: torch.autograd.grad(product, parameters[:1]))
        assert counted["mm"] < 38


# ---- autograd.Function with setup_context and vmap


class Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, product, total):
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total


class ProductWithVmap(Product):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x, y):
        x, y = (
            t.movedim(dim, 0) if dim is not None else t.expand(info.batch_size, *t.shape)
            for t, dim in zip((x, y), in_dims, strict=True)
        )
        return ProductWithVmap.apply(x, y), (0, 0)


@pytest.mark.parametrize("function", [Product, ProductWithVmap])
class TestFunction:
    @pytest.fixture
    def x(self, device):
        return torch.arange(6.0).reshape(3, 2).to(device)

    @pytest.fixture
    def y(self, device):
        return torch.tensor([2.0, 3.0]).to(device)

    def test_setup_context(self, function, x, y):
        x.requires_grad_()
        product, total = function.apply(x, y)
        assert product.grad_fn is total.grad_fn
        assert product.grad_fn.name() == f"{function.__name__}Backward"
        (product * 10 + total).sum().backward()
        assert x.grad.tolist() == [[21, 31]] * 3 and y.grad is None

    def test_vmap_outside_of_grad(self, function, x, y):
        def loss(x, y):
            product, total = function.apply(x, y)
            return (product * 10 + total).sum()

        for_x, for_y = torch.vmap(torch.func.grad(loss, (0, 1)), (0, None))(x, y)
        assert for_x.tolist() == [[21, 31]] * 3
        assert torch.equal(for_y, x * 10 + 1)

    def test_backward_through_vmap(self, function, x, y):
        x.requires_grad_()
        product, total = torch.vmap(function.apply, (0, None))(x, y)
        (product * 10 + total).sum().backward()
        assert x.grad.tolist() == [[21, 31]] * 3

    def test_double_backward(self, function, x, y):
        x.requires_grad_()
        y.requires_grad_()
        product, _ = function.apply(x, y)
        (grad,) = torch.autograd.grad(product.square().sum(), [x], create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), [x])
        assert second.tolist() == [[8, 18]] * 3
