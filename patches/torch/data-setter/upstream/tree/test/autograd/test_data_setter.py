# Owner(s): ["module: autograd"]

import torch
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    TestCase,
)


BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def leaf_of(size=3):
    return torch.ones(size, requires_grad=True)


def accumulator(leaf):
    return leaf.expand_as(leaf).grad_fn.next_functions[0][0]


class TestDataSetter(TestCase):
    @parametrize("dtype", [BF16, F64])
    def test_a_live_graph_delivers_the_present_dtype(self, dtype):
        w = leaf_of()
        loss = (w * 2).sum()
        w.data = w.data.to(dtype)
        loss.backward()
        self.assertIs(w.grad.dtype, dtype)
        self.assertEqual(w.grad, torch.full((3,), 2, dtype=dtype))

    def test_two_graphs_one_from_before(self):
        w, seen = leaf_of(), []
        node = accumulator(w)
        node.register_prehook(lambda grads: seen.append(grads[0].dtype))
        before = (w * 2).sum()
        w.data = w.data.bfloat16()
        after = (w * 3).sum()
        before.backward()
        after.backward()
        self.assertEqual(seen, [BF16, BF16])
        self.assertEqual(w.grad, torch.full((3,), 5, dtype=BF16))

    def test_the_node_stays(self):
        w = leaf_of()
        node = accumulator(w)
        w.data = w.data.bfloat16()
        self.assertIs(accumulator(w), node)

    @parametrize("kind", ["tensor", "post_accumulate", "node_pre", "node_post"])
    @parametrize("graph", ["before", "after"])
    def test_hooks_fire_once(self, kind, graph):
        w, seen = leaf_of(), []
        node = accumulator(w)
        if kind == "tensor":
            w.register_hook(lambda grad: seen.append(grad.dtype))
        elif kind == "post_accumulate":
            w.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.dtype))
        elif kind == "node_pre":
            node.register_prehook(lambda grads: seen.append(grads[0].dtype))
        else:
            node.register_hook(lambda inputs, outputs: seen.append(w.grad.dtype))
        loss = (w * 2).sum() if graph == "before" else None
        w.data = w.data.bfloat16()
        ((w * 2).sum() if loss is None else loss).backward()
        self.assertEqual(seen, [BF16])

    def test_module_to(self):
        linear, seen = torch.nn.Linear(2, 2), []
        node = accumulator(linear.weight)
        node.register_hook(lambda inputs, outputs: seen.append(True))
        loss = linear(torch.ones(1, 2)).sum()
        linear.bfloat16()
        loss.backward()
        self.assertIs(linear.weight.grad.dtype, BF16)
        linear(torch.ones(1, 2, dtype=BF16)).sum().backward()
        self.assertEqual(seen, [True, True])

    def test_changed_in_the_middle_of_a_backward(self):
        w = leaf_of()
        y = w * 2

        def change(grad):
            w.data = w.data.bfloat16()

        y.register_hook(change)
        y.sum().backward()
        self.assertIs(w.grad.dtype, BF16)

    def test_another_shape_is_an_error_that_names_both(self):
        w = leaf_of()
        loss = (w * 2).sum()
        w.data = torch.ones(5, dtype=BF16)
        with self.assertRaisesRegex(RuntimeError, r"Float\[3\].*BFloat16\[5\]"):
            loss.backward()
        self.assertIsNone(w.grad)
        (w * 2).sum().backward()
        self.assertEqual(w.grad, torch.full((5,), 2, dtype=BF16))

    def test_there_and_back(self):
        w = leaf_of()
        loss = (w * 2).sum()
        w.data = w.data.bfloat16()
        w.data = w.data.float()
        loss.backward()
        self.assertEqual(w.grad, torch.full((3,), 2.0))

    def test_the_same_metadata(self):
        w = leaf_of()
        node = accumulator(w)
        loss = (w * 2).sum()
        w.data = w.data * 3
        loss.backward()
        self.assertEqual(w.grad, torch.full((3,), 2.0))
        self.assertIs(accumulator(w), node)

    def test_incompatible_types_are_refused(self):
        w = leaf_of()
        with self.assertRaisesRegex(RuntimeError, "incompatible tensor type"):
            w.data = torch.ones(3, 3).to_sparse()
        with self.assertRaisesRegex(RuntimeError, "floating point or complex"):
            w.data = torch.ones(3, dtype=torch.int32)

    def test_autograd_grad(self):
        w = leaf_of()
        loss = (w * 2).sum()
        w.data = w.data.bfloat16()
        (grad,) = torch.autograd.grad(loss, [w])
        self.assertIs(grad.dtype, BF16)


instantiate_parametrized_tests(TestDataSetter)


if __name__ == "__main__":
    run_tests()
