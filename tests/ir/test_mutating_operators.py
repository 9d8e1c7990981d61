"""Custom operators that write to their arguments, called on XLA as they are (pytorch/xla#8385)."""

import pytest
import torch
import torch_xla
from ir_text import ir

LIBRARY = torch.library.Library("mutating", "DEF")


def operator(schema, key="CompositeExplicitAutograd"):
    def define(function):
        name = LIBRARY.define(schema)
        LIBRARY.impl(name, function, key)
        return getattr(torch.ops.mutating, name)

    return define


@operator("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
def add_(x, y):
    return x.add_(y)


@operator("swap(Tensor(a!) x, Tensor(b!) y) -> ()")
def swap(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


@operator("scale_all(Tensor(a!)? first, Tensor(b!)[] others, Tensor?[] factors) -> Tensor")
def scale_all(first, others, factors):
    for tensor in [first, *others]:
        if tensor is not None:
            tensor.mul_(sum(f for f in factors if f is not None))
    return others[0] + 1


@operator("on_cpu(Tensor(a!) x, Tensor(b!)[] more, Tensor y) -> (Tensor(a!), Tensor)", "CPU")
def on_cpu(x, more, y):
    for tensor in [x, *more]:
        tensor.numpy()[...] += y.numpy()
    return x, y * 2


@operator("twice_(Tensor(a!) x) -> ()")
def twice_(x):
    add_(x, x)


@pytest.fixture
def ones():
    return lambda *shape: torch.ones(*shape, device=torch_xla.device())


@pytest.mark.fails_on_stock
def test_the_write_is_a_node_of_the_graph():
    x, y = (torch.ones(3, device=torch_xla.device()) for _ in range(2))
    other = torch.ones(3, device=torch_xla.device())
    add_(x, y)
    other.add_(y)
    assert "aten::add" in ir(x)
    assert ir(x) == ir(other)


@pytest.mark.fails_on_stock
def test_the_result_is_the_argument(ones):
    x = ones(3)
    result = add_(x, ones(3))
    result.mul_(5)
    assert x.tolist() == [10.0] * 3


@pytest.mark.fails_on_stock
def test_a_view_and_its_base(ones):
    x = ones(2, 3)
    before = x[0]
    add_(x.t()[1:, :], ones(2))
    assert x.tolist() == [[1.0, 2.0, 2.0]] * 2
    assert before.tolist() == [1.0, 2.0, 2.0]


@pytest.mark.fails_on_stock
def test_two_halves_of_a_tensor(ones):
    x = torch.arange(4.0).to(ones(1).device)
    swap(*x.chunk(2))
    assert x.tolist() == [2.0, 3.0, 0.0, 1.0]


@pytest.mark.fails_on_stock
def test_lists_and_absent_tensors(ones):
    first, second, third = ones(2), ones(2), ones(2)
    assert scale_all(None, [second, third], [None, ones(1) * 3]).tolist() == [4.0] * 2
    scale_all(first, [second[1:]], [ones(1) * 2, None])
    assert (first.tolist(), second.tolist(), third.tolist()) == ([2.0] * 2, [3.0, 6.0], [3.0] * 2)


@pytest.mark.fails_on_stock
def test_an_operator_of_the_cpu_alone(ones):
    x, y = ones(2, 2), ones(2)
    more = [ones(2), ones(2)[:]]
    result, double = on_cpu(x[:, 0], more, y)
    assert double.device == x.device
    assert double.tolist() == [2.0] * 2
    assert [m.tolist() for m in more] == [[2.0] * 2] * 2
    result.add_(5)
    assert x.tolist() == [[7.0, 1.0]] * 2


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("more", [lambda x: [x], lambda x: [x[:]]], ids=["the tensor", "a view"])
def test_copies_do_not_share_memory(ones, more):
    x = ones(2)
    with pytest.raises(RuntimeError, match="mutating::on_cpu writes to an argument that shares memory"):
        on_cpu(x, more(x), ones(2))
    assert on_cpu(x, [], x[:].clone())[0].tolist() == [2.0] * 2


@pytest.mark.fails_on_stock
def test_an_operator_that_calls_another(ones):
    x = ones(3)
    twice_(x[1:])
    assert x.tolist() == [1.0, 2.0, 2.0]


@pytest.mark.since("2.6", "torch.library.custom_op")
@pytest.mark.fails_on_stock
def test_custom_op_in_a_training_step(ones):
    @torch.library.custom_op("mutating::sine", mutates_args={"out"})
    def sine(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x.sin())

    w = ones(3).requires_grad_()
    buffer = torch.zeros(3).to(w.device)
    (w * buffer).sum().backward()
    sine(w.detach(), buffer)
    version = buffer._version
    sine(w.detach(), buffer)
    assert buffer._version == version + 1
    with torch.inference_mode():
        sine(ones(2), buffer[:2].clone())
    (w * buffer).sum().backward()
    torch.testing.assert_close(w.grad.cpu(), torch.ones(3).sin())


@pytest.mark.fails_on_stock
def test_saved_tensors_that_are_written_to_are_still_refused(ones):
    w = ones(3).requires_grad_()
    x = ones(3)
    loss = (w * x).sum()
    add_(x, x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.fails_on_stock
def test_an_error_of_the_kernel_leaves_the_argument(ones):
    x = ones(3)
    with pytest.raises((RuntimeError, ValueError), match=r"broadcast|size"):
        on_cpu(x, [], ones(2))
    assert x.tolist() == [1.0] * 3
