"""A backward on the CPU before the first use of XLA leaves XLA's backward whole (pytorch/xla#4174)."""

import pytest
import torch
import torch_xla
from ir_text import ir
from other_process import forked, fresh

CPU_FIRST = """
import torch
w = torch.ones(2, requires_grad=True)
(w * 2).sum().backward()
"""

ON_XLA = """
import torch, torch_xla
from ir_text import ir
w = torch.ones(2, requires_grad=True, device=torch_xla.device())
(w * 3).sum().backward()
print(ir(w.grad), end="")
print(w.grad.tolist())
"""


@pytest.fixture
def stdout():
    return lambda program: forked("-c", program).stdout


@pytest.mark.fails_on_stock
def test_after_a_backward_on_the_cpu(stdout):
    w = torch.ones(2, requires_grad=True, device=torch_xla.device())
    (w * 3).sum().backward()
    assert stdout(CPU_FIRST + "import torch_xla\n" + ON_XLA) == ir(w.grad) + "[3.0, 3.0]\n"


@pytest.mark.slow
@pytest.mark.fails_on_stock
def test_torch_xla_imported_after_a_backward():
    assert fresh("-c", CPU_FIRST + ON_XLA).stdout.endswith("[3.0, 3.0]\n")


@pytest.mark.fails_on_stock
def test_many_threads_at_once(stdout):
    program = (
        CPU_FIRST
        + """
import threading, torch_xla
device = torch_xla.device()
barrier, results = threading.Barrier(8), []
def backward(i):
    w = torch.ones(2, requires_grad=True, device=device if i % 2 else "cpu")
    barrier.wait()
    for _ in range(5):
        (w * i).sum().backward()
    results.append((i, w.grad.tolist()))
threads = [threading.Thread(target=backward, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert sorted(results) == [(i, [5.0 * i] * 2) for i in range(8)], results
print("all")
"""
    )
    assert stdout(program).endswith("all\n")


@pytest.mark.fails_on_stock
def test_reentrant_backward_and_hooks(stdout):
    program = (
        CPU_FIRST
        + """
import torch_xla
class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (y * 2).sum().backward()
        return g * y.grad
w = torch.ones(2, requires_grad=True, device=torch_xla.device())
Inner.apply(w).sum().backward()
print(w.grad.tolist())
"""
    )
    assert stdout(program).endswith("[2.0, 2.0]\n")


@pytest.mark.passes_on_stock
def test_xla_first_is_as_it_was(stdout):
    assert stdout(ON_XLA + CPU_FIRST).endswith("[3.0, 3.0]\n")


@pytest.mark.passes_on_stock
def test_a_child_can_run_a_backward_on_the_cpu(stdout):
    program = (
        CPU_FIRST
        + """
import os
child = os.fork()
if child == 0:
    w.sum().backward()
    os._exit(int(w.grad.tolist() != [3.0, 3.0]))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    )
    stdout(program)
