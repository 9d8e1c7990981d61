# Owner(s): ["module: autograd"]

import copy
import gc

import torch
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
    TestCase,
)


BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


class Returns(torch.autograd.Function):
    """Of x a float32 scalar, whose backward hands ``gradient()`` to x just as it is."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.gradient = gradient
        return x.sum().float()

    @staticmethod
    def backward(ctx, grad):
        return ctx.gradient(), None


def backward_of(leaf, value, dtype):
    Returns.apply(leaf, lambda: torch.full(leaf.shape, value, dtype=dtype)).backward()


def leaf_of(dtype=F32, size=3):
    return torch.ones(size, dtype=dtype, requires_grad=True)


class TestGradDtype(TestCase):
    def test_default_is_the_tensor_dtype(self):
        for dtype in (F32, BF16, F64):
            leaf = leaf_of(dtype)
            self.assertIs(leaf.grad_dtype, dtype)
            backward_of(leaf, 1.0, F32)
            self.assertIs(leaf.grad.dtype, dtype)

    @parametrize("wanted", [F32, F64])
    def test_accumulates_in_the_dtype(self, wanted):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = wanted
        self.assertIs(leaf.grad_dtype, wanted)
        # 1 + 2**-9 is no bfloat16 number.
        for value in (1.0, 2.0**-9):
            backward_of(leaf, value, F32)
        self.assertIs(leaf.grad.dtype, wanted)
        self.assertEqual(leaf.grad, torch.full((3,), 1.0 + 2.0**-9, dtype=wanted))

    def test_none_keeps_what_comes(self):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = None
        self.assertIsNone(leaf.grad_dtype)
        backward_of(leaf, 1.0, F64)
        self.assertIs(leaf.grad.dtype, F64)

    def test_what_is_set_after_the_forward_counts(self):
        leaf = leaf_of(BF16)
        loss = leaf.float().sum()
        leaf.grad_dtype = F32
        loss.backward()
        self.assertIs(leaf.grad.dtype, F32)

    def test_autograd_grad(self):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = F32
        (grad,) = torch.autograd.grad(
            Returns.apply(leaf, lambda: torch.full((3,), 1.0 + 2.0**-9)), leaf
        )
        self.assertEqual(grad, torch.full((3,), 1.0 + 2.0**-9))
        self.assertIs(grad.dtype, F32)

    def test_assigning_grad(self):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = F32
        leaf.grad = torch.ones(3)
        self.assertIs(leaf.grad.dtype, F32)
        with self.assertRaisesRegex(RuntimeError, "grad_dtype"):
            leaf.grad = torch.ones(3, dtype=BF16)
        leaf.grad = None
        leaf.grad_dtype = None
        leaf.grad = torch.ones(3, dtype=F64)
        self.assertIs(leaf.grad.dtype, F64)
        with self.assertRaisesRegex(RuntimeError, "size"):
            leaf.grad = torch.ones(4)

    def test_errors(self):
        leaf = leaf_of()
        with self.assertRaisesRegex(RuntimeError, "leaf"):
            (leaf * 2).grad_dtype = F32
        with self.assertRaisesRegex(RuntimeError, "torch.dtype"):
            leaf.grad_dtype = "float32"
        leaf.grad = torch.ones(3)
        with self.assertRaisesRegex(RuntimeError, "grad"):
            leaf.grad_dtype = BF16
        self.assertIs(leaf.grad_dtype, F32)

    def test_hooks_get_the_dtype(self):
        leaf, seen = leaf_of(BF16), []
        leaf.grad_dtype = F32
        leaf.register_hook(lambda grad: seen.append(grad.dtype))
        leaf.register_post_accumulate_grad_hook(
            lambda leaf: seen.append(leaf.grad.dtype)
        )
        backward_of(leaf, 1.0, F32)
        self.assertEqual(seen, [F32, F32])

    def test_not_handed_on_by_views_and_copies(self):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = F32
        self.assertIs(leaf.detach().requires_grad_().grad_dtype, BF16)
        self.assertIs(leaf.detach().clone().requires_grad_().grad_dtype, BF16)

    def test_swap_tensors_takes_it_along(self):
        a, b = leaf_of(BF16), leaf_of(BF16)
        a.grad_dtype = F32
        torch.utils.swap_tensors(a, b)
        self.assertIs(a.grad_dtype, BF16)
        self.assertIs(b.grad_dtype, F32)

    def test_survives_data_assignment(self):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = F32
        leaf.data = torch.zeros(3, dtype=BF16)
        self.assertIs(leaf.grad_dtype, F32)
        backward_of(leaf, 1.0, F64)
        self.assertIs(leaf.grad.dtype, F32)

    def test_a_tensor_that_is_gone_leaves_nothing(self):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = F32
        del leaf
        gc.collect()
        other = leaf_of(BF16)
        self.assertIs(other.grad_dtype, BF16)
        backward_of(other, 1.0, F32)
        self.assertIs(other.grad.dtype, BF16)

    def test_module(self):
        linear = torch.nn.Linear(4, 2).bfloat16()
        for parameter in linear.parameters():
            parameter.grad_dtype = F32
        for _ in range(2):
            linear(torch.ones(3, 4, dtype=BF16)).sum().backward()
        for parameter in linear.parameters():
            self.assertIs(parameter.grad.dtype, F32)
            self.assertEqual(parameter.grad, torch.full_like(parameter.grad, 6.0))
        self.assertIs(copy.deepcopy(linear).weight.dtype, BF16)


class Scale(torch.autograd.Function):
    """Three times x; the gradient of the result arrives in ``dtype``."""

    @staticmethod
    def forward(ctx, x, dtype, seen):
        ctx.set_output_grad_dtype(dtype)
        ctx.seen = seen
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        ctx.seen.append(grad.dtype)
        return grad * 3, None, None


class TestOutputGradDtype(TestCase):
    @parametrize(
        "wanted",
        [
            subtest(F32, name="float32"),
            subtest(BF16, name="bfloat16"),
            subtest(None, name="none"),
        ],
    )
    def test_arrives_as_declared(self, wanted):
        leaf, seen = leaf_of(BF16), []
        out = Scale.apply(leaf, wanted, seen)
        self.assertIs(out.dtype, BF16)
        backward = Returns.apply(out, lambda: torch.full((3,), 1.0 + 2.0**-9))
        backward.backward()
        self.assertEqual(seen, [F32 if wanted is None else wanted])
        self.assertIs(leaf.grad.dtype, BF16)

    def test_a_chain_does_not_round(self):
        def gradient(wanted):
            x, seen = leaf_of(BF16), []
            x.grad_dtype = F32
            out = Scale.apply(Scale.apply(x, wanted, seen), wanted, seen)
            Returns.apply(out, lambda: torch.full((3,), 1.0 + 2.0**-9)).backward()
            return x.grad

        self.assertEqual(gradient(F32), torch.full((3,), 9 * (1 + 2.0**-9)))
        self.assertNotEqual(gradient(BF16), gradient(F32))

    def test_errors(self):
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.set_output_grad_dtype(F32)
                ctx.set_output_grad_dtype(F32)
                return x * 2

        class TooMany(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.set_output_grad_dtype(F32, F32)
                return x * 2

        class NoDtype(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.set_output_grad_dtype("float32")
                return x * 2

        with self.assertRaisesRegex(RuntimeError, "twice"):
            Twice.apply(leaf_of())
        with self.assertRaises(RuntimeError):
            TooMany.apply(leaf_of())
        with self.assertRaisesRegex(RuntimeError, "torch.dtype"):
            NoDtype.apply(leaf_of())


instantiate_parametrized_tests(TestGradDtype)
instantiate_parametrized_tests(TestOutputGradDtype)


if __name__ == "__main__":
    run_tests()
