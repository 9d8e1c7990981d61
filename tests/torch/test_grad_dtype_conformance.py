"""What ``Tensor.grad_dtype`` does in torch 2.15, and so must do here (pytorch/pytorch#162815).

One file for two torches: every test passes on stock torch 2.15 and on a patched 2.9, on CPU tensors
and, where torch_xla is installed, on XLA tensors. Where 2.9 cannot follow, the test says so.
"""

import gc
import re
import weakref

import grad_dtype_cases
import pytest
import torch
from torch.autograd import forward_ad

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
UPSTREAM = torch.__version__ >= (2, 10)


@pytest.fixture
def leaf(device):
    def make(*size, dtype=F32):
        return torch.ones(*(size or (3,)), device=device, dtype=dtype).requires_grad_()

    return make


class Returns(torch.autograd.Function):
    """Of x a float32 scalar, whose backward hands ``gradient()`` to x just as it is."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.gradient = gradient
        return x.sum().float()

    @staticmethod
    def backward(ctx, grad):
        return ctx.gradient(), None


def backward_of(leaf, value=1.0, dtype=F32, size=None):
    """Backward through ``leaf``, to which a gradient full of ``value`` in ``dtype`` arrives."""
    size = tuple(leaf.shape) if size is None else size
    Returns.apply(leaf, lambda: torch.full(size, value, dtype=dtype, device=leaf.device)).backward()


def accumulator(leaf):
    return leaf.expand_as(leaf).grad_fn.next_functions[0][0]


def full(leaf, value, dtype):
    return torch.full(tuple(leaf.shape), value, dtype=dtype, device=leaf.device)


class TestAttribute:
    @pytest.mark.fails_on_stock
    def test_is_the_tensor_dtype_by_default(self, device):
        for dtype in (F32, BF16, torch.int32):
            assert torch.ones(2, device=device, dtype=dtype).grad_dtype is dtype

    @pytest.mark.fails_on_stock
    def test_set_before_requires_grad(self, device):
        w = torch.ones(2, device=device)
        w.grad_dtype = BF16
        w.requires_grad_()
        (w * 2).sum().backward()
        assert w.grad_dtype is BF16 and w.grad.dtype is BF16

    @pytest.mark.fails_on_stock
    def test_can_be_set_on_leaves_only(self, leaf):
        y = leaf() * 2
        with pytest.raises(RuntimeError, match="grad_dtype can only be set on leaf tensors"):
            y.grad_dtype = BF16

    @pytest.mark.fails_on_stock
    @pytest.mark.parametrize("value", [3, "float32", torch.strided])
    def test_takes_a_dtype_or_none(self, leaf, value):
        w = leaf()
        with pytest.raises(RuntimeError, match=r"grad_dtype must be a torch\.dtype or None"):
            w.grad_dtype = value
        assert w.grad_dtype is F32

    @pytest.mark.fails_on_stock
    def test_conflicts_with_a_gradient_that_is_there(self, leaf):
        w = leaf()
        (w * 2).sum().backward()
        with pytest.raises(RuntimeError, match="grad_dtype"):
            w.grad_dtype = BF16
        assert w.grad_dtype is F32
        w.grad_dtype = F32
        w.grad_dtype = None
        with pytest.raises(RuntimeError, match="grad_dtype"):
            w.grad_dtype = BF16
        w.grad = None
        w.grad_dtype = BF16
        assert w.grad_dtype is BF16

    @pytest.mark.fails_on_stock
    def test_torch_function_sees_it(self, device):
        seen = []

        class Logged(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                seen.append(getattr(function, "__self__", None) is torch.Tensor.grad_dtype)
                return super().__torch_function__(function, types, args, kwargs or {})

        w = torch.ones(3, device=device).as_subclass(Logged)
        seen.clear()
        w.grad_dtype = BF16
        assert w.grad_dtype is BF16
        assert seen.count(True) == 2

    @pytest.mark.fails_on_stock
    def test_of_a_subclass(self, device):
        class Plain(torch.Tensor):
            pass

        w = torch.ones(3, device=device).as_subclass(Plain).requires_grad_()
        w.grad_dtype = BF16
        (w * 2).sum().backward()
        assert w.grad_dtype is BF16 and w.grad.dtype is BF16
        v = torch.ones(3, device=device).as_subclass(Plain).requires_grad_()
        v.grad_dtype = None
        v.grad = torch.ones(3, device=device, dtype=BF16)
        assert v.grad.dtype is BF16


class TestBackward:
    @pytest.mark.fails_on_stock
    def test_does_not_round_what_is_wanted_wide(self, leaf):
        w = leaf(dtype=BF16)
        w.grad_dtype = F32
        backward_of(w, 1.01)
        assert w.grad.dtype is F32
        assert torch.equal(w.grad.cpu(), torch.full((3,), 1.01))

    @pytest.mark.fails_on_stock
    def test_widens_a_narrow_gradient(self, leaf):
        w = leaf(dtype=BF16)
        w.grad_dtype = F32
        (w.float() * 1.01).sum().backward()
        assert w.grad.dtype is F32
        exact = torch.full((3,), 1.01)
        rounded = exact.bfloat16().float()  # by the cast's own backward; on XLA, that of wide-weight-grad does not
        on_xla = w.device.type == "xla"
        assert torch.equal(w.grad.cpu(), rounded) or (on_xla and torch.equal(w.grad.cpu(), exact))

    @pytest.mark.fails_on_stock
    def test_accumulates_in_the_wanted_dtype(self, leaf):
        w = leaf(dtype=BF16)
        w.grad_dtype = F32
        backward_of(w, 1.01)
        first = w.grad
        backward_of(w, 0.001)
        assert w.grad is first
        torch.testing.assert_close(w.grad.cpu(), torch.full((3,), 1.011), rtol=1e-6, atol=0)

    @pytest.mark.fails_on_stock
    def test_the_last_one_set_counts(self, leaf):
        w = leaf()
        w.grad_dtype = BF16
        loss = (w * 2).sum()
        w.grad_dtype = F16
        loss.backward()
        assert w.grad.dtype is F16
        w.grad = None
        w.grad_dtype = F32
        (w * 2).sum().backward()
        assert w.grad.dtype is F32

    def test_a_wrong_shape_is_refused(self, leaf):
        w = leaf()
        w.grad_dtype = None
        with pytest.raises(RuntimeError, match="invalid gradient at index 0"):
            backward_of(w, 1.0, BF16, size=(4,))
        assert w.grad is None

    def test_a_wrong_device_is_refused(self, leaf):
        w = leaf()
        w.grad_dtype = None
        with pytest.raises(RuntimeError, match="invalid gradient at index 0"):
            Returns.apply(w, lambda: torch.ones(3, dtype=BF16, device="meta")).backward()

    @pytest.mark.fails_on_stock
    def test_a_scalar_moves_to_the_device(self, device):
        w = torch.ones((), device=device, requires_grad=True)
        w.grad_dtype = None
        Returns.apply(w, lambda: torch.tensor(1.0, dtype=BF16)).backward()
        assert w.grad.dtype is BF16 and w.grad.device == w.device

    def test_an_undefined_gradient(self, leaf):
        w = leaf()
        w.grad_dtype = None
        Returns.apply(w, lambda: None).backward()
        assert w.grad is None

    def test_requires_grad_taken_away(self, leaf):
        w = leaf()
        w.grad_dtype = BF16
        loss = (w * 2).sum()
        w.requires_grad_(False)
        loss.backward()
        assert w.grad is None

    @pytest.mark.fails_on_stock
    def test_layout_contract(self, device):
        w = torch.ones(2, 3, device=device).t().requires_grad_()
        w.grad_dtype = BF16
        (w * 2).sum().backward()
        assert w.grad.dtype is BF16 and w.grad.stride() == w.stride()

    @pytest.mark.fails_on_stock
    def test_a_gradient_in_use_elsewhere_is_copied(self, leaf):
        w = leaf()
        kept = full(w, 1.0, BF16)
        w.grad_dtype = None
        Returns.apply(w, lambda: kept).backward()
        w.grad.add_(1)
        assert w.grad.dtype is BF16
        assert torch.equal(kept.cpu().float(), torch.ones(3))

    @pytest.mark.fails_on_stock
    def test_the_node_outlives_the_variable(self, leaf):
        w = leaf()
        w.grad_dtype = BF16
        loss = (w * 2).sum()
        node = loss.grad_fn.next_functions[0][0].next_functions[0][0]
        del w
        gc.collect()
        loss.backward()
        assert node.variable.grad.dtype is BF16 and node.variable.grad_dtype is BF16

    @pytest.mark.fails_on_stock
    def test_the_node_called_by_hand(self, leaf):
        w = leaf()
        w.grad_dtype = None
        accumulator(w)(full(w, 1.0, BF16))
        assert w.grad.dtype is BF16

    @pytest.mark.fails_on_stock
    def test_a_leaf_that_is_a_view(self, device):
        base = torch.zeros(4, device=device)
        w = base[0:2].requires_grad_()
        w.grad_dtype = BF16
        (w * 2).sum().backward()
        with torch.no_grad():
            base.add_(1)
        assert w._is_view() and w.grad.dtype is BF16
        assert w.tolist() == [1, 1]


class TestHooks:
    @pytest.mark.fails_on_stock
    def test_node_hooks(self, leaf):
        w, seen = leaf(), []
        w.grad_dtype = BF16
        node = accumulator(w)
        node.register_prehook(lambda grads: seen.append(("pre", grads[0].dtype)))
        node.register_hook(lambda inputs, outputs: seen.append(("post", outputs[0].dtype)))
        (w * 2).sum().backward()
        assert seen == [("pre", BF16), ("post", BF16)] and w.grad.dtype is BF16

    @pytest.mark.fails_on_stock
    def test_multi_grad_hook(self, leaf):
        w, v, seen = leaf(), leaf(), []
        w.grad_dtype = BF16
        torch.autograd.graph.register_multi_grad_hook([w, v], lambda grads: seen.append([grad.dtype for grad in grads]))
        (w * v).sum().backward()
        assert seen == [[BF16, F32]]

    @pytest.mark.fails_on_stock
    def test_set_in_a_hook_further_up(self, leaf):
        w = leaf()
        y = w * 2

        def hook(grad):
            w.grad_dtype = BF16

        y.register_hook(hook)
        y.sum().backward()
        assert w.grad.dtype is BF16


class TestGradSetter:
    @pytest.mark.fails_on_stock
    def test_must_match(self, leaf):
        w = leaf()
        w.grad_dtype = BF16
        w.grad = full(w, 1.0, BF16)
        with pytest.raises(RuntimeError, match="attempting to assign a gradient"):
            w.grad = full(w, 1.0, F32)
        assert w.grad.dtype is BF16

    def test_must_match_the_tensor_by_default(self, leaf):
        w = leaf()
        with pytest.raises(RuntimeError, match="attempting to assign a gradient"):
            w.grad = full(w, 1.0, BF16)
        assert w.grad is None

    def test_the_other_checks_stay(self, leaf):
        w = leaf()
        w.grad_dtype = None
        for wrong in (
            torch.ones(4, device=w.device, dtype=BF16),
            torch.ones(3, device="meta", dtype=BF16),
            w,
        ):
            with pytest.raises(RuntimeError, match="assign"):
                w.grad = wrong
        with pytest.raises(TypeError, match="assigned grad expected to be a Tensor or None"):
            w.grad = 3
        assert w.grad is None

    @pytest.mark.fails_on_stock
    def test_sparse_layouts(self):
        w = torch.ones(3, 3, requires_grad=True)
        w.grad_dtype = None
        w.grad = torch.ones(3, 3, dtype=BF16).to_sparse()
        assert w.grad.is_sparse
        with pytest.raises(RuntimeError, match="attempting to assign a gradient"):
            w.grad = torch.ones(3, 3, dtype=BF16).to_sparse_csr()

    @pytest.mark.fails_on_stock
    def test_the_gradient_lives_as_long_as_the_leaf(self, leaf):
        w = leaf()
        w.grad_dtype = None
        w.grad = full(w, 1.0, BF16)
        assert w.grad is w.grad
        grad = weakref.ref(w.grad)
        gc.collect()
        assert grad() is w.grad
        w.grad = None
        assert grad() is None


class TestOtherTensors:
    @pytest.mark.since("2.6", "torch.utils.swap_tensors")
    @pytest.mark.fails_on_stock
    def test_swap_tensors(self, device):
        a, b = (torch.nn.Parameter(torch.full((3,), v, device=device)) for v in (0.0, 1.0))
        a.grad_dtype = BF16
        torch.utils.swap_tensors(a, b)
        assert a.grad_dtype is F32 and b.grad_dtype is BF16

    @pytest.mark.fails_on_stock
    def test_nothing_is_left_of_dead_tensors(self, device):
        w = torch.ones(1, device=device)
        w.grad_dtype = BF16
        dead = weakref.ref(w)
        del w
        gc.collect()
        assert dead() is None
        for _ in range(1000):
            v = torch.ones(1, device=device)
            assert v.grad_dtype is F32
            v.grad_dtype = BF16

    def test_functional_transforms_do_not_see_it(self):
        w = torch.ones(3, requires_grad=True)
        w.grad_dtype = BF16
        assert torch.func.grad(lambda x: (x * 2).sum())(w).dtype is F32
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(w, torch.ones(3))
            assert forward_ad.unpack_dual(dual * 2).tangent.tolist() == [2, 2, 2]


class TestData:
    @pytest.mark.fails_on_stock
    def test_the_data_of_a_leaf_brings_none_along(self, leaf):
        source, w = leaf(), leaf()
        source.grad_dtype = BF16
        w.data = source
        assert w.grad_dtype is F32 and source.grad_dtype is BF16


# Patterns of the cases in which a pin differs from torch 2.15: docs/leaving.md says how and why.
DIFFERENCES = (
    r"rounded_sum \w+ (f32|f64|c64) (bf16|f32|c64)",
    r"view_changed_in_place .*",
    r"declared_and_used \w+ none (view|slice|split)",
    r"declared_for_an_output_without_a_gradient .*",
)
if torch.__version__ < (2, 6):
    DIFFERENCES += (r"former_leaf .*", r"changed_in_place .*")
else:
    DIFFERENCES += (r"with_a_gradient .* deepcopy", r"converted .* (half|double)")
ON_XLA = (
    r"sparse .*",  # of which it has none
    r"rounded_sum .*",  # in another order
)


def matched(patterns, names):
    return {name: pattern for name in names for pattern in patterns if re.fullmatch(pattern, name)}


@pytest.mark.fails_on_stock
def test_cases_that_were_recorded_on_torch_2_15():
    found, recorded = grad_dtype_cases.outcomes(), grad_dtype_cases.recorded()
    assert found.keys() == recorded.keys()
    different = {name: (found[name], recorded[name]) for name in recorded if found[name] != recorded[name]}
    if UPSTREAM:
        assert different == {}
        return
    known = matched(DIFFERENCES, different)
    assert different.keys() == known.keys()
    assert {*known.values()} == {*DIFFERENCES}


@pytest.mark.default_pin
@pytest.mark.fails_on_stock
def test_those_of_wide_gradients_of_bfloat16_on_xla():
    xla, recorded = pytest.importorskip("torch_xla").device(), grad_dtype_cases.recorded()
    with torch.device(xla):
        found = grad_dtype_cases.outcomes(lambda case, arguments: arguments[0] is BF16 and arguments[1] in (None, F32))
    different = {name: (outcome, recorded[name]) for name, outcome in found.items() if outcome != recorded[name]}
    assert different.keys() == matched(DIFFERENCES + ON_XLA, different).keys()
