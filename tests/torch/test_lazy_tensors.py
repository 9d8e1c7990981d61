"""Torch's own lazy tensors: patches/torch/graph-identity without torch_xla, whose tests are in tests/ir.

Their backend, TorchScript, is one of torch's own. A process has one backend of lazy tensors, and torch_xla is another.
"""

import importlib.util

import pytest
import torch

if importlib.util.find_spec("torch_xla") is not None:
    pytest.skip("torch_xla is the backend of lazy tensors here", allow_module_level=True)

import torch._lazy
import torch._lazy.metrics
import torch._lazy.ts_backend

torch._lazy.ts_backend.init()

PAIRS = {
    "arithmetic": (lambda x, y: (x - y) * x, lambda x, y: (x - y) * y),
    "quotient": (lambda x, y: x / y + x, lambda x, y: x / y + y),
    "product": (lambda x, y: (x @ y) @ x, lambda x, y: (x @ y) @ y),
    "list": (lambda x, y: torch.cat([x - y, x]), lambda x, y: torch.cat([x - y, y])),
}


@pytest.fixture
def operands():
    x = torch.tensor([[2.0, 3.0], [5.0, 7.0]])
    return x, x.t() * 10 - 40


def run(program, operands):
    """What a program gives when its graph is compiled and run."""
    lazy = [tensor.to("lazy") for tensor in operands]
    torch._lazy.mark_step()
    result = program(*lazy)
    torch._lazy.mark_step()
    return result.cpu()


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("name", PAIRS)
def test_which_parameter_feeds_which_operand(name, operands):
    for program in PAIRS[name] * 2:
        assert torch.equal(run(program, operands), program(*operands))


@pytest.mark.passes_on_stock
def test_gradients(operands):
    def difference(which):
        def program(x, y):
            x, y = (tensor.detach().requires_grad_() for tensor in (x, y))
            ((x - y) * (x, y)[which]).sum().backward()
            return x.grad - 3 * y.grad

        return program

    for which in (0, 1):
        program = difference(which)
        assert torch.equal(run(program, operands), program(*operands))


@pytest.mark.passes_on_stock
def test_the_same_program_is_compiled_once(operands):
    def program(x, y):
        return ((x + y) * x).relu()

    run(program, operands)
    compiled = torch._lazy.metrics.counter_value("UncachedCompile")
    for _ in range(3):
        run(program, operands)
    assert compiled and torch._lazy.metrics.counter_value("UncachedCompile") == compiled
