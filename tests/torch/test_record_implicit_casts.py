"""``torch.autograd.graph.record_implicit_casts``: what the engine converts without being asked."""

import dataclasses
import gc
import threading
import weakref

import pytest
import torch
from gradients import Narrow, Wide

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
LEAF = "torch::autograd::AccumulateGrad"


@pytest.fixture
def leaf(device):
    return lambda: torch.ones(2, 3, device=device, dtype=BF16, requires_grad=True)


@pytest.fixture
def record():
    return torch.autograd.graph.record_implicit_casts


@pytest.mark.fails_on_stock
class TestRecords:
    def test_all_there_is_to_know(self, leaf, record):
        loss = Wide.apply(leaf() * 2)
        with record() as casts:
            loss.backward()
        assert casts == [
            torch.autograd.graph.ImplicitCast(
                from_dtype=F32,
                to_dtype=BF16,
                shape=(2, 3),
                produced_by="WideBackward",
                demanded_by="MulBackward0",
                index=0,
                forward_stack=None,
            )
        ]

    def test_is_frozen(self, leaf, record):
        with record() as casts:
            Wide.apply(leaf()).backward()
        with pytest.raises(dataclasses.FrozenInstanceError):
            casts[0].index = 3
        assert dataclasses.asdict(casts[0])["produced_by"] == "WideBackward"

    def test_a_backward_without_conversions(self, leaf, record):
        with record() as casts:
            (leaf() * leaf()).sum().backward()
            leaf().float().sum().backward()
        assert casts == [] and not casts and len(casts) == 0

    def test_the_root(self, leaf, record):
        w = leaf()
        with record() as casts:
            (w * 2).backward(torch.ones(2, 3, dtype=F64, device=w.device))
        assert [(c.from_dtype, c.to_dtype, c.produced_by, c.demanded_by) for c in casts] == [
            (F64, BF16, "", "MulBackward0")
        ]

    def test_the_index_is_the_one_of_the_error_messages(self, leaf, record):
        class Several(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b, c):
                return (a + c).sum()

            @staticmethod
            def backward(ctx, grad):
                return torch.ones(2, 3, dtype=BF16), None, torch.ones(2, 3, dtype=F64)

        a, b, c = (torch.ones(2, 3, dtype=BF16, requires_grad=True) for _ in range(3))
        with record() as casts:
            Several.apply(a, b, c).backward()
        assert [(c.index, c.from_dtype) for c in casts] == [(2, F64)]

    @pytest.mark.parametrize("dtype", [F32, None])
    def test_a_leaf_with_a_grad_dtype(self, leaf, record, dtype):
        w = leaf()
        w.grad_dtype = dtype
        with record() as casts:
            Narrow.apply(w).sum().backward()
        found = [(c.from_dtype, c.to_dtype, c.produced_by, c.demanded_by) for c in casts]
        assert found == ([] if dtype is None else [(BF16, F32, "NarrowBackward", LEAF)])

    @pytest.mark.until("2.10", "grad_dtype of castoff's, of which wide_grads_report asks this")
    def test_what_was_rounded_and_for_whom(self, leaf, record):
        w = leaf()
        w.grad_dtype = F32
        with record() as casts:
            Narrow.apply(w).sum().backward()
        assert [(c.rounded, c.leaves) for c in casts] == [(True, (w._cdata,))]

    @pytest.mark.until("2.10", "grad_dtype of castoff's, which looks behind views")
    def test_a_leaf_behind_a_view(self, leaf, record):
        w = leaf()
        w.grad_dtype = F32
        with record() as casts:
            Narrow.apply(w.t()).sum().backward()
        assert [(c.to_dtype, c.shape, c.produced_by, c.demanded_by) for c in casts] == [
            (F32, (3, 2), "NarrowBackward", LEAF)
        ]

    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x,
            pytest.param(torch.t, marks=pytest.mark.until("2.10", "grad_dtype of castoff's, which looks behind views")),
        ],
        ids=["itself", "a view"],
    )
    def test_a_declared_output(self, leaf, record, view):
        class Declared(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.set_output_grad_dtype(F32)
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                return grad

        with record() as casts:
            Narrow.apply(view(Declared.apply(leaf()))).sum().backward()
        assert [(c.from_dtype, c.to_dtype, c.produced_by, c.demanded_by) for c in casts] == [
            (BF16, F32, "NarrowBackward", "DeclaredBackward"),
            (F32, BF16, "DeclaredBackward", LEAF),
        ]

    def test_what_is_handed_on_is_not_rounded(self, leaf, record):
        w, x = leaf(), leaf()
        w.grad_dtype = F32
        with record() as casts:
            ((w + x) - w + Narrow.apply(x)).backward(torch.ones_like(x))
        assert casts and not any(c.rounded for c in casts)
        assert {c.leaves for c in casts} <= {(), (w._cdata,)}

    def test_a_gradient_that_is_reduced(self, leaf, record):
        class Broadcast(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                return torch.ones(5, 2, 3, device=grad.device)

        with record() as casts:
            Broadcast.apply(leaf()).sum().backward()
        assert [(c.from_dtype, c.shape) for c in casts] == [(F32, (2, 3))]

    def test_autograd_grad(self, leaf, record):
        w = leaf()
        with record() as casts:
            torch.autograd.grad(Wide.apply(w), [w])
        assert [c.produced_by for c in casts] == ["WideBackward"]

    def test_a_backward_inside_a_backward(self, leaf, record):
        class Reentrant(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                with torch.enable_grad():
                    inner = torch.ones(2, 3, dtype=BF16, requires_grad=True)
                    (inner * 2).backward(torch.ones(2, 3))
                return grad

        with record() as casts:
            Reentrant.apply(leaf()).sum().backward()
        assert [(c.produced_by, c.demanded_by) for c in casts] == [("", "MulBackward0")]

    def test_an_error_in_the_backward(self, leaf, record):
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                return torch.ones(7)

        with record() as casts:
            with pytest.raises(RuntimeError, match="WrongBackward returned an invalid gradient"):
                Wrong.apply(leaf()).sum().backward()
            assert casts == []
            Wide.apply(leaf()).backward()
        assert len(casts) == 1


@pytest.mark.fails_on_stock
class TestContexts:
    def test_records_are_there_inside_and_after(self, leaf, record):
        with record() as casts:
            Wide.apply(leaf()).backward()
            assert len(casts) == 1 and casts[0].produced_by == "WideBackward"
            Wide.apply(leaf()).backward()
            assert len(list(casts)) == 2
        Wide.apply(leaf()).backward()
        assert len(casts) == 2 and isinstance(casts, list)

    def test_nested(self, leaf, record):
        with record() as outer:
            Wide.apply(leaf()).backward()
            with record() as inner:
                Wide.apply(leaf() * 2).backward()
            Wide.apply(leaf()).backward()
        assert [c.demanded_by for c in inner] == ["MulBackward0"]
        assert [c.demanded_by for c in outer] == [LEAF, "MulBackward0", LEAF]

    def test_ends_with_an_exception(self, leaf, record):
        with pytest.raises(ValueError, match="mine"), record() as casts:
            Wide.apply(leaf()).backward()
            raise ValueError("mine")
        Wide.apply(leaf()).backward()
        assert len(casts) == 1

    def test_ends_in_another_order_than_begun(self, leaf, record):
        first, second = record(), record()
        one, two = first.__enter__(), second.__enter__()
        Wide.apply(leaf()).backward()
        first.__exit__(None, None, None)
        Wide.apply(leaf()).backward()
        second.__exit__(None, None, None)
        assert (len(one), len(two)) == (1, 2)

    def test_a_list_like_any_other(self, leaf, record):
        with record() as casts:
            for _ in range(3):
                Wide.apply(leaf()).backward()
            assert casts[-1] in casts and casts.count(casts[0]) == 3
            assert casts[1:] == list(casts)[1:] == [c for c in casts][1:]  # noqa: C416
            casts.clear()
            assert repr(casts) == "[]"
            Wide.apply(leaf()).backward()
            assert len(casts.copy()) == 1

    def test_several_threads(self, record):
        """Backwards in four threads, contexts that come and go in two more."""
        count, done = 50, threading.Event()

        class Mine(Wide):
            pass

        def backward():
            for _ in range(count):
                Mine.apply(torch.ones(2, 3, dtype=BF16, requires_grad=True)).backward()

        def observe():
            while not done.is_set():
                with record() as casts:
                    done.wait(0.001)
                assert all(c.produced_by == "MineBackward" for c in casts)

        with record() as casts:
            workers = [threading.Thread(target=backward) for _ in range(4)]
            observers = [threading.Thread(target=observe) for _ in range(2)]
            for thread in workers + observers:
                thread.start()
            for thread in workers:
                thread.join()
            done.set()
            for thread in observers:
                thread.join()
        assert len(casts) == 4 * count

    def test_nothing_is_kept_alive(self, record):
        loss = Wide.apply(torch.ones(2, 3, dtype=BF16, requires_grad=True))
        node = weakref.ref(loss.grad_fn)
        with record() as casts:
            loss.backward()
            del loss
            gc.collect()
            assert node() is None
        assert len(casts) == 1


@pytest.mark.fails_on_stock
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
class TestForwardStack:
    def test_tells_where_the_forward_op_was(self, leaf, record):
        def the_forward_of_the_user(x):
            return Wide.apply(x)

        with torch.autograd.set_detect_anomaly(True):
            loss = the_forward_of_the_user(leaf() * 2)
        with record() as casts:
            loss.backward()
        (cast,) = casts
        assert "in the_forward_of_the_user" in cast.forward_stack
        assert "return Wide.apply(x)" in cast.forward_stack and __file__ in cast.forward_stack

    def test_an_op_of_torchs_own(self, leaf, record):
        w = leaf()
        w.grad_dtype = F32
        with torch.autograd.set_detect_anomaly(True), record() as casts:
            w.sin().sum().backward()
        assert "w.sin().sum()" in casts[0].forward_stack

    def test_of_a_root_it_is_the_op_that_it_goes_to(self, leaf, record):
        with torch.autograd.set_detect_anomaly(True):
            y = leaf() * 2
        with record() as casts:
            y.backward(torch.ones(2, 3, device=y.device))
        assert "y = leaf() * 2" in casts[0].forward_stack

    def test_the_node_is_let_go_after_it_is_read(self, record):
        with torch.autograd.set_detect_anomaly(True):
            loss = Wide.apply(torch.ones(2, 3, dtype=BF16, requires_grad=True))
        node = weakref.ref(loss.grad_fn)
        with record() as casts:
            loss.backward()
            del loss
        assert casts[0].forward_stack is not None
        gc.collect()
        assert node() is None

    def test_a_context_that_nobody_reads_lets_it_go_too(self, record):
        nodes = []
        for _ in range(3):
            with torch.autograd.set_detect_anomaly(True):
                loss = Wide.apply(torch.ones(2, 3, dtype=BF16, requires_grad=True))
            nodes.append(weakref.ref(loss.grad_fn))
            with record():
                loss.backward()
        del loss
        gc.collect()
        assert [node() for node in nodes] == [None] * 3


@pytest.mark.passes_on_stock
def test_the_gradients_are_the_same_without_it(leaf):
    w = leaf()
    Wide.apply(w * 2).backward()
    assert w.grad.dtype is BF16 and w.grad[0, 0].item() == 2.015625
