# Owner(s): ["module: autograd"]

import torch
from torch.testing._internal.common_utils import run_tests, TestCase


BF16, F32 = torch.bfloat16, torch.float32


class ReturnsFloat32(torch.autograd.Function):
    """Of x a float32 scalar, whose backward hands a float32 gradient to x."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum().float()

    @staticmethod
    def backward(ctx, grad):
        return torch.ones(ctx.shape)


def leaf_of(dtype):
    return torch.ones(3, dtype=dtype, requires_grad=True)


class TestRecordImplicitCasts(TestCase):
    def test_lists_what_the_engine_converts(self):
        leaf = leaf_of(BF16)
        with torch.autograd.graph.record_implicit_casts() as casts:
            ReturnsFloat32.apply(leaf).backward()
        (cast,) = casts
        self.assertIs(cast.from_dtype, F32)
        self.assertIs(cast.to_dtype, BF16)
        self.assertIn("ReturnsFloat32", cast.produced_by)
        self.assertIn("AccumulateGrad", cast.demanded_by)
        self.assertEqual(list(cast.shape), [3])

    def test_a_grad_dtype_makes_it_go_away(self):
        leaf = leaf_of(BF16)
        leaf.grad_dtype = F32
        with torch.autograd.graph.record_implicit_casts() as casts:
            ReturnsFloat32.apply(leaf).backward()
        self.assertEqual(list(casts), [])

    def test_what_the_user_asked_for_is_not_among_them(self):
        leaf = leaf_of(BF16)
        with torch.autograd.graph.record_implicit_casts() as casts:
            leaf.float().sum().backward()
        self.assertEqual(list(casts), [])
        self.assertIs(leaf.grad.dtype, BF16)


if __name__ == "__main__":
    run_tests()
