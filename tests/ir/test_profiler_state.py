"""Named parts of a program, and the profiler's callbacks in a backward pass: patches/torch/profiler-state."""

import re
import threading

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE
from torch_xla.debug import profiler


@pytest.fixture
def named_ir():
    torch_xla._XLAC._set_ir_debug(True)
    yield lambda tensor: torch_xla._XLAC._get_xla_tensors_text([tensor])
    torch_xla._XLAC._set_ir_debug(False)


def backward_names():
    """The backward nodes that a profiler of this thread sees: they run in the engine's threads, too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        torch.ones(2, device=DEVICE, requires_grad=True).exp().sum().backward()
    return {event.name for event in found.events() if "Backward0" in event.name}


@fails_on_stock
def test_a_graph_runs_in_a_named_part():
    with profiler.Trace("forward"):
        twice = torch.ones(2, device=DEVICE) + 1
        torch_xla.sync()
        ir(twice * 2).expect("""\
%0 = f32[] xla::device_data()
%1 = f32[2] xla::device_data()
%2 = f32[2] aten::mul(%1, %0)
return %2
""")
    assert twice.tolist() == [2, 2]


@pytest.mark.since("2.6", "_set_ir_debug")
@fails_on_stock
def test_after_a_sync_in_a_named_part_its_name_is_that_of_what_follows(named_ir):
    ones = torch.ones(2, device=DEVICE)
    with profiler.Trace("forward"):
        twice = ones * 2
        torch_xla.sync()
        assert re.search(r"scope=forward\.\d+/aten::mul\.", named_ir(twice * 3))
    assert re.search(r"scope=aten::mul\.", named_ir(twice * 3))


@pytest.mark.since("2.6", "_set_ir_debug")
@passes_on_stock
def test_nodes_are_numbered_anew_from_each_sync(named_ir):
    texts = []
    for _ in range(2):
        torch_xla.sync()
        texts.append(named_ir(torch.ones(2, device=DEVICE) * 3))
    assert "scope=aten::mul.1" in texts[0]
    assert texts[0] == texts[1]


@passes_on_stock
def test_a_profiler_sees_the_backward_pass():
    torch.ones(2, device=DEVICE, requires_grad=True).exp().sum().backward()
    assert backward_names() >= {"ExpBackward0", "SumBackward0"}
    torch.ones(2, device=DEVICE, requires_grad=True).exp().sum().backward()
    assert backward_names() >= {"ExpBackward0", "SumBackward0"}


@passes_on_stock
def test_a_profiler_of_another_thread_sees_its_own_backward_pass():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(backward_names()))
    thread.start()
    thread.join()
    assert seen[0] >= {"ExpBackward0", "SumBackward0"}


@passes_on_stock
def test_a_backward_pass_without_callbacks_has_none():
    enable = torch._C._autograd._enable_record_function
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        loss = torch.ones(2, device=DEVICE, requires_grad=True).exp().sum()
        enable(False)
        loss.backward()
        enable(True)
        loss.neg()
    names = {event.name for event in found.events()}
    assert "aten::neg" in names
    assert not any("Backward0" in name for name in names)
