"""``ctx.set_output_grad_dtype`` (pytorch/pytorch#189634) and what views do with a declared dtype."""

import threading
import weakref

import pytest
import torch
from gradients import Wide, compiled_autograd

BF16, F16, F32, F64, C64 = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64
EXACT = torch.tensor(1.01).item()  # in float32; bfloat16 rounds it
ROUNDED = torch.tensor(1.01, dtype=BF16).item()


@pytest.fixture
def leaf(device):
    return lambda *shape: torch.ones(shape or (2, 3), device=device, dtype=BF16, requires_grad=True)


def declared(*dtypes, with_setup=False, forward=lambda ctx, x: x * 1, formula=lambda *grads: grads[0] * 1):
    """A Function of one input that declares ``dtypes`` and notes what arrives in ``.seen``."""
    of_this_input = forward

    class Declared(torch.autograd.Function):
        seen = []  # noqa: RUF012
        generate_vmap_rule = with_setup
        if with_setup:

            @staticmethod
            def forward(x):
                return x * 1

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.set_output_grad_dtype(*dtypes)
        else:

            @staticmethod
            def forward(ctx, x):
                if dtypes:
                    ctx.set_output_grad_dtype(*dtypes)
                return of_this_input(ctx, x)

        @staticmethod
        def backward(ctx, *grads):
            Declared.seen += [grad if grad is None else grad.detach() for grad in grads]
            return formula(*grads)

    return Declared


def two_outputs(ctx, x):
    return x * 1, x * 2


def doubled_in_place(ctx, x):
    ctx.mark_dirty(x)
    return x.mul_(2)


def raising(ctx, x):
    raise ValueError("mine")


def arrived(function):
    """The dtype of the one gradient that arrived, and whether it is as exact as float32."""
    (grad,) = function.seen
    function.seen.clear()
    values = {value for value in grad.double().flatten().tolist() if value != 0}
    assert values in ({EXACT}, {ROUNDED}), values
    return grad.dtype, values == {EXACT}


@pytest.mark.fails_on_stock
class TestDeclaration:
    @pytest.mark.parametrize("with_setup", [False, True])
    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [(F32, (F32, True)), (None, (F32, True)), (BF16, (BF16, False)), (F64, (F64, True))],
    )
    def test_decides_what_arrives(self, leaf, dtype, expected, with_setup):
        function = declared(dtype, with_setup=with_setup)
        y = function.apply(leaf())
        assert y.dtype is BF16 and y.grad_dtype is dtype
        Wide.apply(y).backward()
        assert arrived(function) == expected

    def test_without_one_it_is_the_dtype_of_the_output(self, leaf):
        function = declared()
        y = function.apply(leaf())
        assert y.grad_dtype is BF16
        Wide.apply(y).backward()
        assert arrived(function) == (BF16, False)

    @pytest.mark.parametrize("dtype", [F32, None])
    def test_a_chain_is_not_rounded(self, leaf, dtype):
        first, second, third = (declared(dtype) for _ in range(3))
        w = leaf()
        w.grad_dtype = F32
        Wide.apply(third.apply(second.apply(first.apply(w)))).backward()
        assert [arrived(f) for f in (first, second, third)] == [(F32, True)] * 3
        assert w.grad.dtype is F32 and w.grad[0, 0].item() == EXACT

    def test_a_broadcast_gradient_is_summed_in_it(self, leaf):
        """4096 gradients of 1 + 2^-7: their sum is no bfloat16."""
        function = declared(F32)
        broadcast = declared(forward=lambda ctx, x: x.expand(4096, 1).clone(), formula=lambda grad: grad)
        y = broadcast.apply(function.apply(leaf(1, 1)))
        y.backward(torch.full_like(y, 1 + 2**-7))
        assert function.seen[0].dtype is F32
        assert function.seen[0].item() == 4096 * (1 + 2**-7)

    def test_several_outputs(self, leaf):
        def forward(ctx, x):
            index = x.argmax()
            detached = x * 5
            ctx.mark_non_differentiable(detached)
            return x * 1, x * 2, x * 3, index, detached, "no tensor"

        function = declared(F32, None, BF16, None, None, None, forward=forward)
        a, b, c, index, detached, text = function.apply(leaf())
        assert (a.grad_dtype, b.grad_dtype, c.grad_dtype) == (F32, None, BF16)
        assert not index.requires_grad and not detached.requires_grad and text == "no tensor"
        (Wide.apply(a) + Wide.apply(b) + Wide.apply(c)).backward()
        assert [g.dtype for g in function.seen[:3]] == [F32, F32, BF16]
        assert [g[0, 0].item() for g in function.seen[:3]] == [EXACT, EXACT, ROUNDED]

    def test_zeros_for_an_unused_output_have_the_declared_dtype(self, leaf):
        function = declared(F32, F64, forward=two_outputs)
        Wide.apply(function.apply(leaf())[0]).backward()
        assert [g.dtype for g in function.seen] == [F32, F64]
        assert function.seen[1].eq(0).all()

    def test_undefined_gradients_stay_none(self, leaf):
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return two_outputs(ctx, x)

        function = declared(None, F64, forward=forward, formula=lambda *grads: grads[1])
        Wide.apply(function.apply(leaf())[1]).backward()
        assert function.seen[0] is None and function.seen[1].dtype is F64

    def test_two_uses_are_summed_in_the_declared_dtype(self, leaf):
        function = declared(F32)
        y = function.apply(leaf())
        (Wide.apply(y) + Wide.apply(y)).backward()
        assert function.seen[0].dtype is F32 and function.seen[0][0, 0].item() == 2 * EXACT

    def test_an_input_modified_in_place(self, leaf):
        function = declared(F32, forward=doubled_in_place)
        x = leaf() * 1
        Wide.apply(function.apply(x)).backward()
        assert x.grad_dtype is F32
        assert arrived(function) == (F32, True)

    @pytest.mark.parametrize("make", [lambda x: x, lambda x: x.view(-1), lambda x: x.detach()])
    def test_an_output_that_is_the_input_or_a_view_of_it(self, leaf, make):
        function = declared(F32, forward=lambda ctx, x: make(x), formula=lambda grad: grad.view(2, 3))
        y = function.apply(leaf())
        assert y.grad_dtype is F32
        Wide.apply(y).backward()
        assert arrived(function) == (F32, True)

    def test_double_backward(self, leaf):
        function = declared(F32, formula=lambda grad: grad * grad)
        x = leaf()
        y = function.apply(x)
        v = torch.full((2, 3), 3.0, dtype=BF16, device=x.device, requires_grad=True)
        (grad,) = torch.autograd.grad(y, x, v, create_graph=True)
        assert grad.requires_grad and grad.dtype is BF16
        (second,) = torch.autograd.grad(grad, v, torch.ones_like(grad))
        assert function.seen[0].dtype is F32 and second.dtype is BF16 and second[0, 0].item() == 6

    def test_once_differentiable(self, leaf):
        class Once(torch.autograd.Function):
            seen = None

            @staticmethod
            def forward(ctx, x):
                ctx.set_output_grad_dtype(F32)
                return x * 1

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx, grad):
                Once.seen = grad
                return grad

        Wide.apply(Once.apply(leaf())).backward()
        assert Once.seen.dtype is F32

    def test_checkpoint(self):
        from torch.utils.checkpoint import checkpoint

        function = declared(F32)
        x = torch.ones(2, 3, dtype=BF16, requires_grad=True)
        Wide.apply(checkpoint(function.apply, x * 1, use_reentrant=False)).backward()
        assert arrived(function) == (F32, True)

    def test_retain_grad_and_hooks_of_the_output_see_the_declared_dtype(self, leaf):
        function, seen = declared(F32), []
        y = function.apply(leaf())
        y.retain_grad()
        y.register_hook(lambda grad: seen.append(grad.dtype))
        Wide.apply(y).backward()
        assert y.grad.dtype is F32 and seen == [F32]
        assert arrived(function) == (F32, True)

    def test_without_gradients_it_does_nothing(self, leaf):
        function = declared(F32)
        assert not function.apply(leaf().detach()).requires_grad
        with torch.no_grad():
            assert not function.apply(leaf()).requires_grad

    def test_threads(self, leaf):
        """Functions that declare, some with errors, in four threads: each gets its own."""
        wrong, done = [], []

        def run(dtype):
            for _ in range(100):
                function = declared(dtype)
                y = function.apply(leaf())
                Wide.apply(y).backward()
                if y.grad_dtype is not dtype or arrived(function)[0] is not (dtype or F32):
                    wrong.append(dtype)
                with pytest.raises(RuntimeError):
                    declared(dtype, dtype).apply(leaf())
            done.append(dtype)

        threads = [threading.Thread(target=run, args=(dtype,)) for dtype in (F32, None, BF16, F64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == [] and len(done) == 4
        assert not torch.autograd._output_grad_dtype.pending

    def test_a_function_inside_another_ones_forward(self, leaf):
        inner = declared(F32)

        class Outer(torch.autograd.Function):
            seen = None

            @staticmethod
            def forward(ctx, x, depth):
                if depth:
                    ctx.set_output_grad_dtype(F64)
                    with torch.enable_grad():
                        ctx.y = inner.apply(x.detach().requires_grad_())
                        assert Outer.apply(x.detach().requires_grad_(), 0).grad_dtype is BF16
                    assert ctx.y.grad_dtype is F32
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                Outer.seen = grad
                return grad, None

        y = Outer.apply(leaf(), 1)
        assert y.grad_dtype is F64
        Wide.apply(y).backward()
        assert Outer.seen.dtype is F64

    def test_the_ctx_dies_with_the_graph(self):
        function = declared(F32)
        y = function.apply(torch.ones(3, dtype=BF16, requires_grad=True))
        alive = weakref.ref(y.grad_fn)
        assert alive() is not None
        del y
        assert alive() is None


@pytest.mark.fails_on_stock
class TestErrors:
    @pytest.mark.parametrize("dtypes", [(F32, F32), (None, None, None)])
    def test_the_number_must_be_right(self, leaf, dtypes):
        with pytest.raises(RuntimeError) as info:
            declared(*dtypes).apply(leaf())
        assert str(info.value) == (
            "set_output_grad_dtype of Declared: expected 1 dtypes, one for each returned value, but "
            f"found {len(dtypes)}. Pass None for values without a declaration"
        )
        with pytest.raises(RuntimeError, match="expected 1 dtypes"), torch.no_grad():
            declared(*dtypes).apply(leaf())

    def test_one_call(self, leaf):
        twice = declared(F32, forward=lambda ctx, x: ctx.set_output_grad_dtype(F32))
        with pytest.raises(RuntimeError, match="set_output_grad_dtype was called twice on the ctx of Declared"):
            twice.apply(leaf())
        assert not torch.autograd._output_grad_dtype.pending

    def test_not_from_backward(self, leaf):
        class Late(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                ctx.set_output_grad_dtype(F32)
                return grad

        with pytest.raises(RuntimeError, match=r"Call it from forward\(\) or setup_context\(\)"):
            Late.apply(leaf()).sum().backward()

    @pytest.mark.parametrize("wrong", [3, "float32", torch.strided])
    def test_takes_dtypes_and_none(self, leaf, wrong):
        with pytest.raises(RuntimeError, match=f"but got {type(wrong).__name__}"):
            declared(wrong).apply(leaf())

    def test_a_dtype_that_the_output_cannot_have(self, leaf):
        with pytest.raises(RuntimeError, match="expected a floating point or complex dtype"):
            declared(torch.int32).apply(leaf())

    @pytest.mark.parametrize("output", ["text", None, 3])
    def test_no_tensor(self, leaf, output):
        function = declared(F32, F32, forward=lambda ctx, x: (x * 1, output))
        with pytest.raises(RuntimeError, match=f"output 1 is a {type(output).__name__} and has no gradient"):
            function.apply(leaf())

    @pytest.mark.parametrize("integral", [False, True])
    def test_no_differentiable_tensor(self, leaf, integral):
        def forward(ctx, x):
            y = x.argmax() if integral else x * 2
            ctx.mark_non_differentiable(y)
            return x * 1, y

        with pytest.raises(RuntimeError, match="output 1 is not differentiable"):
            declared(F32, F32, forward=forward).apply(leaf())

    def test_a_view_modified_in_place(self, leaf):
        with pytest.raises(RuntimeError, match="output 0 is a view that was modified in place"):
            declared(F32, forward=doubled_in_place).apply((leaf() * 1)[0])

    def test_a_forward_that_raises_leaves_nothing_behind(self, leaf):
        with pytest.raises(ValueError, match="mine"):
            declared(F32, forward=raising).apply(leaf())
        assert not torch.autograd._output_grad_dtype.pending

    def test_a_gradient_that_is_not_differentiable_is_refused_for_none(self, leaf):
        integral = declared(
            forward=lambda ctx, x: x.float().sum(), formula=lambda grad: torch.ones(2, 3, dtype=torch.int32)
        )
        with pytest.raises(RuntimeError, match="DeclaredBackward returned an invalid gradient"):
            integral.apply(declared(None).apply(torch.ones(2, 3, dtype=BF16, requires_grad=True))).backward()


class Behind:
    """Every view that hands a declaration on, by the name of its node."""

    VIEWS = {  # noqa: RUF012
        "AliasBackward0": torch.ops.aten.alias,
        "AsStridedBackward0": lambda y: y.as_strided((3, 2), (1, 3)),
        "DiagonalBackward0": lambda y: y.diagonal(),
        "ExpandBackward0": lambda y: y.unsqueeze(0).expand(1, 2, 3),
        "PermuteBackward0": lambda y: y.permute(1, 0),
        "ReshapeAliasBackward0": lambda y: torch.ops.aten._reshape_alias(y, (3, 2), (2, 1)),
        "SelectBackward0": lambda y: y[1],
        "SliceBackward0": lambda y: y[:, 1:],
        "SqueezeBackward0": lambda y: y[:1].squeeze(),
        "SqueezeBackward1": lambda y: y[:1].squeeze(0),
        "SqueezeBackward2": lambda y: y[:1].squeeze((0,)),
        "TBackward0": lambda y: y.t(),
        "TransposeBackward0": lambda y: y.transpose(0, 1),
        "UnfoldBackward0": lambda y: y.unfold(1, 1, 1),
        "UnsafeViewBackward0": lambda y: torch.ops.aten._unsafe_view(y, (6,)),
        "UnsqueezeBackward0": lambda y: y.unsqueeze(0),
        "ViewBackward0": lambda y: y.view(6),
    }


@pytest.mark.fails_on_stock
class TestViews:
    @pytest.fixture(params=sorted(Behind.VIEWS))
    def view(self, request):
        def make(y):
            z = Behind.VIEWS[request.param](y)
            assert z.grad_fn.name() == request.param
            return z

        return make

    @pytest.mark.parametrize("dtype", [F32, None])
    def test_hands_the_declaration_on(self, leaf, view, dtype):
        function = declared(dtype)
        Wide.apply(view(function.apply(leaf()))).backward()
        assert arrived(function) == (F32, True)

    @pytest.mark.parametrize("dtype", [F32, None])
    def test_hands_a_leafs_grad_dtype_on(self, leaf, view, dtype):
        w = leaf()
        w.grad_dtype = dtype
        Wide.apply(view(w)).backward()
        assert w.grad.dtype is F32
        assert set(w.grad.flatten().tolist()) <= {EXACT, 0.0}

    def test_gives_the_gradient_of_the_declared_function_as_in_float32(self, leaf, view):
        """The backward formula of the view, on a gradient that is wider than the view was."""
        function = declared(F32)
        z = view(function.apply(leaf()))
        grad = torch.linspace(0.1, 1.3, z.numel(), device=z.device).view(z.shape)
        x = torch.ones(2, 3, device=z.device, requires_grad=True)
        torch.autograd.backward(z, grad)
        view(x * 1).backward(grad)
        assert torch.equal(function.seen[0], x.grad)

    def test_a_chain_of_them(self, leaf):
        function = declared(F32)
        y = function.apply(leaf()).view(6)[1:].unsqueeze(0).expand(1, 5).transpose(0, 1).t()
        Wide.apply(y).backward()
        assert arrived(function) == (F32, True)

    def test_several_users(self, leaf):
        function = declared(F32)
        y = function.apply(leaf())
        (Wide.apply(y.t()) + Wide.apply(y) + Wide.apply(y.view(6))).backward()
        assert function.seen[0].dtype is F32
        assert function.seen[0][0, 0].item() == pytest.approx(3 * EXACT, abs=3e-7)

    @pytest.mark.parametrize("depth", [64, 65])
    def test_sixty_four_of_them(self, depth):
        function = declared(F32)
        y = function.apply(torch.ones(2, 3, dtype=BF16, requires_grad=True))
        for _ in range(depth):
            y = y.t()
        Wide.apply(y).backward()
        assert arrived(function) == (F32, depth == 64)

    @pytest.mark.parametrize("kind", ["hook", "retain_grad", "prehook", "posthook", "inputs"])
    def test_whoever_looks_at_the_views_gradient_finds_its_own_dtype(self, leaf, kind):
        function, seen, w = declared(F32), [], leaf()
        y = function.apply(w).t()
        assert y.grad_dtype is BF16
        note = lambda *grads: seen.append(grads[-1][0].dtype)  # noqa: E731
        inputs = None
        if kind == "hook":
            y.register_hook(note)
        elif kind == "retain_grad":
            y.retain_grad()
        elif kind == "prehook":
            y.grad_fn.register_prehook(note)
        elif kind == "posthook":
            y.grad_fn.register_hook(note)
        else:
            inputs = [y, w]
        Wide.apply(y).backward(inputs=inputs)
        if not seen:
            seen.append(y.grad.dtype)
        assert seen == [BF16]
        assert arrived(function) == (F32, False)

    def test_a_narrower_one_waits_behind_the_view(self, leaf):
        """4096 gradients of 1 + 2^-7, summed by expand: not in the bfloat16 that was declared."""
        function = declared(BF16)
        x = torch.ones(1, device=leaf().device, requires_grad=True)
        z = function.apply(x).expand(4096)
        seen = []
        z.register_hook(lambda grad: seen.append(grad.dtype))
        z.backward(torch.full((4096,), 1 + 2**-7, device=x.device))
        assert seen == [F32] and function.seen[0].dtype is BF16 and function.seen[0].item() == 4128

    @pytest.mark.parametrize("between", [lambda y: y + 0, lambda y: y.clone(), lambda y: y.flip(0)])
    def test_what_is_no_view_does_not(self, leaf, between):
        function = declared(F32)
        w = leaf()
        Wide.apply(between(function.apply(w))).backward()
        dtype, wide = arrived(function)
        assert dtype is F32
        assert not wide or w.device.type == "xla"  # there wide-weight-grad hands it on


@pytest.mark.passes_on_stock
class TestUnused:
    def test_a_function_that_declares_nothing(self, leaf):
        function = declared()
        Wide.apply(function.apply(leaf()).t()).backward()
        assert arrived(function) == (BF16, False)

    def test_exceptions_come_through(self, leaf):
        with pytest.raises(ValueError, match="mine"):
            declared(forward=raising).apply(leaf())

    @pytest.mark.parametrize("vmap", [False, True])
    def test_setup_context_and_vmap(self, vmap):
        class Square(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x):
                return x * x

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx, grad):
                return 2 * ctx.saved_tensors[0] * grad

        x = torch.arange(3.0, requires_grad=True)
        y = torch.func.vmap(Square.apply)(x) if vmap else Square.apply(x)
        y.sum().backward()
        assert x.grad.tolist() == [0, 2, 4]
        assert torch.func.vmap(torch.func.grad(Square.apply))(x.detach()).tolist() == [0, 2, 4]


class WideFunctorch(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.float().sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, grad):
        return torch.full(ctx.shape, 1.01) * grad


@pytest.mark.fails_on_stock
class TestFunctorch:
    @pytest.mark.parametrize("dtype", [F32, None])
    @pytest.mark.parametrize("transform", ["grad", "vmap_of_grad", "vmap_of_vmap_of_grad", "vmap", "vjp"])
    def test_transforms(self, transform, dtype):
        function = declared(dtype, with_setup=True)

        def loss(x):
            return WideFunctorch.apply(function.apply(x))

        x = torch.ones(2, 3, dtype=BF16)
        if transform == "grad":
            torch.func.grad(loss)(x)
        elif transform == "vmap_of_grad":
            torch.func.vmap(torch.func.grad(loss))(x)
        elif transform == "vmap_of_vmap_of_grad":
            torch.func.vmap(torch.func.vmap(torch.func.grad(loss)))(x)
        elif transform == "vjp":
            torch.func.vjp(loss, x)[1](torch.ones(()))
        else:
            Wide.apply(torch.func.vmap(function.apply)(x.requires_grad_())).backward()
        (grad,) = function.seen
        assert grad.dtype is F32
        assert not torch.autograd._output_grad_dtype.pending

    def test_errors(self):
        with pytest.raises(RuntimeError, match="expected 1 dtypes"):
            torch.func.grad(lambda x: declared(F32, F32, with_setup=True).apply(x).sum())(torch.ones(3))
        assert not torch.autograd._output_grad_dtype.pending


@pytest.mark.fails_on_stock
class TestCompile:
    @pytest.fixture(autouse=True)
    def fresh(self):
        torch._dynamo.reset()

    def test_breaks_the_graph_and_works(self, leaf):
        function = declared(F32)

        @torch.compile(backend="eager")
        def compiled(x):
            return function.apply(x + 1) * 1

        x = torch.ones(2, 3, dtype=BF16, requires_grad=True)
        for _ in range(2):
            compiled(x).sum().backward()
            assert function.seen.pop().dtype is F32

    @pytest.mark.since("2.6", "a reason in what fullgraph=True raises")
    def test_fullgraph_says_what_it_cannot(self):
        function = declared(F32)
        compiled = torch.compile(function.apply, backend="eager", fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="set_output_grad_dtype"):
            compiled(torch.ones(2, 3, dtype=BF16, requires_grad=True))

    @pytest.mark.since("2.9", "a compiled backward that casts by the nodes' metadata (get_input_metadata)")
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    @pytest.mark.parametrize(
        "view", [lambda y: y, lambda y: y.t(), lambda y: y.view(3, 2).t()[:, :1]], ids=["itself", "t", "chain"]
    )
    def test_compiled_autograd(self, backend, view):
        """Its cache, too, tells the declarations apart."""

        class Declared(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, dtype):
                ctx.set_output_grad_dtype(dtype)
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                return grad + (1 if grad.dtype is F32 else 2), None

        x = torch.ones(2, 3, dtype=BF16, requires_grad=True)
        x.grad_dtype = F32
        for dtype in (F32, None, BF16, F32):
            x.grad = None
            loss = Wide.apply(view(Declared.apply(x, dtype)))
            with compiled_autograd(backend):
                loss.backward()
            expected = ROUNDED + 2 if dtype is BF16 else torch.tensor(1.01).add(1).item()
            expected = torch.tensor(expected, dtype=BF16 if dtype is BF16 else F32).item()
            assert x.grad.max().item() == expected, dtype
