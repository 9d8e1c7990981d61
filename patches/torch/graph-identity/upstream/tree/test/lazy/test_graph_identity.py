# Owner(s): ["oncall: jit"]

import torch
import torch._lazy
import torch._lazy.metrics as metrics
import torch._lazy.ts_backend
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    TestCase,
)


torch._lazy.ts_backend.init()

PROGRAMS = {
    "div_add": (lambda x, y: x / y + x, lambda x, y: x / y + y),
    "sub_mul": (lambda x, y: (x - y) * x, lambda x, y: (x - y) * y),
    "maximum": (
        lambda x, y: torch.where(x > y, x, y),
        lambda x, y: torch.where(x > y, y, x),
    ),
    "matmul": (lambda x, y: (x @ y) @ x, lambda x, y: (x @ y) @ y),
    "cat": (lambda x, y: torch.cat([x - y, x]), lambda x, y: torch.cat([x - y, y])),
}


class TestGraphIdentity(TestCase):
    def setUp(self):
        super().setUp()
        self.cpu = [torch.tensor([[2.0, 3.0], [5.0, 7.0]])]
        self.cpu.append(self.cpu[0].t() * 10 - 40)
        self.lazy = [tensor.to("lazy") for tensor in self.cpu]
        torch._lazy.mark_step()

    def run_lazily(self, program):
        result = program(*self.lazy)
        torch._lazy.mark_step()
        return result.cpu()

    @parametrize("name", list(PROGRAMS))
    def test_which_parameter_feeds_which_operand(self, name):
        for program in PROGRAMS[name] * 2:
            self.assertEqual(self.run_lazily(program), program(*self.cpu))

    def test_gradients(self):
        def gradient_times(which):
            def program(x, y):
                x, y = (tensor.detach().requires_grad_() for tensor in (x, y))
                ((x - y) * (x, y)[which]).sum().backward()
                return x.grad - 3 * y.grad

            return program

        for which in (0, 1):
            program = gradient_times(which)
            self.assertEqual(self.run_lazily(program), program(*self.cpu))

    def test_the_same_graph_is_compiled_once(self):
        def program(x, y):
            return ((x + y) * x).relu()

        self.run_lazily(program)
        compiled = metrics.counter_value("UncachedCompile")
        self.assertGreater(compiled, 0)
        for _ in range(3):
            self.run_lazily(program)
        self.assertEqual(metrics.counter_value("UncachedCompile"), compiled)


instantiate_parametrized_tests(TestGraphIdentity)


if __name__ == "__main__":
    run_tests()
