"""while_loop, fori_loop and scan of XLA tensors: patches/torch_xla/control-flow.

Tests marked ``fails_on_stock`` state what the topic is for, those marked ``passes_on_stock`` what it leaves alone.
"""

import pytest
import torch
import torch.utils.checkpoint
import torch_xla.experimental.fori_loop as loops
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE
from torch._higher_order_ops.while_loop import while_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers

dropout = torch.nn.functional.dropout


def data(value):
    return torch.tensor(value).to(DEVICE)


def downwards(i, *_):
    return i > 0


# ---- while_loop


@fails_on_stock
def test_a_loop_runs_as_often_as_its_condition_says():
    """On stock the carried number is taken for its first value in each iteration."""
    i, x = while_loop(downwards, lambda i, x: (i - 1, x * 2 + 1), (data(3), data([0.0, 1.0])))
    assert (i.item(), x.tolist()) == (0, [7.0, 15.0])


@fails_on_stock
def test_a_carried_tensor_that_the_body_does_not_read():
    carried = (data(3), data([0.0]), data([4.0]))
    _, x, u = while_loop(downwards, lambda i, x, u: (i - 1, torch.zeros_like(x) + i, u.clone()), carried)
    assert (x.tolist(), u.tolist()) == ([1.0], [4.0])


@fails_on_stock
def test_captured_tensors():
    limit, c = data(4), data([5.0, 6.0])
    i, x = while_loop(lambda i, x: i < limit, lambda i, x: (i + 2, x + c * i), (data(0), data([0.0, 0.0])))
    assert (i.item(), x.tolist()) == (4, [10.0, 12.0])


@fails_on_stock
def test_the_counter_in_the_last_place():
    x, i = while_loop(lambda x, i: i > 0, lambda x, i: (x + 1, i - 1), (data([0.0]), data(3)))
    assert (x.tolist(), i.item()) == ([3.0], 0)


@passes_on_stock
def test_a_layer_in_the_body():
    layer = torch.nn.Linear(2, 2)
    expected = torch.ones(2)
    with torch.no_grad():
        for _ in range(2):
            expected = layer(expected)
        layer.to(DEVICE)
        _, x = while_loop(downwards, lambda i, x: (i - 1, layer(x)), (data(2), torch.ones(2).to(DEVICE)))
    torch.testing.assert_close(x.cpu(), expected)


@fails_on_stock
def test_random_numbers_of_a_body_differ_from_iteration_to_iteration():
    """So they do in a second loop of the same step."""

    def shift(i, x):
        return i - 1, torch.cat([x[1:], torch.rand(1, device=DEVICE)])

    first, second = (while_loop(downwards, shift, (data(3), data([0.0] * 3)))[1] for _ in range(2))
    assert len({*first.tolist(), *second.tolist()}) == 6


@fails_on_stock
def test_ir_of_a_loop():
    c = data(5.0)
    _, x = while_loop(downwards, lambda i, x: (i - 1, x + c), (data(3), data(0.0)))
    ir(x).expect("""\
%0 = f32[] xla::device_data()
%1 = f32[] prim::Constant()
%2 = s64[] xla::device_data()
%3 = (s64[], f32[], f32[]) xla::while_loop(%2, %1, %0)
return %3
""")


@passes_on_stock
def test_another_shape_is_refused():
    with pytest.raises(Exception, match=r"metadata|shape"):
        while_loop(downwards, lambda i, x: (i - 1, x.sum()), (data(3), data([0.0, 1.0])))


@fails_on_stock
def test_fori_loop_of_a_captured_tensor():
    c = data([7.0])
    _, x = loops.fori_loop(data(0), data(3), lambda x: x + c, data([1.0]))
    assert x.tolist() == [22.0]
    with pytest.raises(RuntimeError, match=r"expected body_fn to return .*float32\[1\].*found .*float64"):
        loops.fori_loop(data(0), data(3), lambda x: x.double(), data([1.0]))


# ---- scan


def layers_with_dropout():
    layers = [torch.nn.Sequential(torch.nn.Linear(32, 32, bias=False), torch.nn.Dropout()) for _ in range(2)]
    for layer in layers:
        torch.nn.init.eye_(layer[0].weight)
        layer.to(DEVICE)
    return layers


@fails_on_stock
def test_dropout_in_scan_layers():
    """Of layers that are the identity and drop: the gradient of ones is the result, so that both have the same mask."""
    x = torch.ones(8, 32, device=DEVICE, requires_grad=True)
    y = scan_layers(layers_with_dropout(), x)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert y.unique().tolist() == [0.0, 4.0]
    assert 0.1 < y.count_nonzero().item() / y.numel() < 0.4  # a quarter: each layer drops what it drops


@fails_on_stock
def test_dropout_in_scan_layers_without_gradients():
    with torch.no_grad():
        y = scan_layers(layers_with_dropout(), torch.ones(8, 32, device=DEVICE))
    assert y.unique().tolist() == [0.0, 4.0]


@fails_on_stock
def test_random_numbers_of_a_second_scan_differ_from_iteration_to_iteration():
    def draw(carry, x):
        return carry * 1, carry * 0 + x + torch.rand(1, device=DEVICE)

    found = [scan(draw, torch.zeros(1, device=DEVICE), torch.zeros(3, 1, device=DEVICE))[1] for _ in range(2)]
    assert len(set(torch.cat(found).flatten().tolist())) == 6


@passes_on_stock
def test_scan_of_what_has_its_dtype_is_as_it_was():
    x = torch.arange(3.0).to(DEVICE)
    carry, ys = scan(lambda c, x: (c + x, c * x), torch.zeros((), device=DEVICE), x)
    assert (carry.item(), ys.tolist()) == (3.0, [0.0, 0.0, 2.0])


@fails_on_stock
def test_a_checkpoint_around_a_scan_that_is_traced_the_first_time():
    """The trace, which is kept, saves tensors of its own: the checkpoint would miss them in the recomputation."""
    weight = torch.eye(2, device=DEVICE).mul_(0.5).requires_grad_()

    def step(carry, x):
        carry = {"h": torch.tanh(x @ carry["w"].t() + carry["h"]), "w": carry["w"]}
        return carry, carry["h"]

    def loss(xs):
        return scan(step, {"h": torch.zeros(2, 2, device=DEVICE), "w": weight}, xs)[1].sum()

    xs = data([[[1.0, 2.0], [3.0, 4.0]]]).requires_grad_()
    torch.utils.checkpoint.checkpoint(loss, xs, use_reentrant=False, preserve_rng_state=False).backward()
    checkpointed, xs.grad = xs.grad.clone(), None
    loss(xs).backward()
    assert torch.equal(checkpointed, xs.grad)
    assert weight.grad.abs().min() > 0


#: Functions of a carried pair and an element of a sequence, of which some results have no gradient.
SCANNED = {
    "a carried number": lambda c, x: ((c[0] * x, c[1] + 1), c[0] + c[1]),
    "a mask": lambda c, x: ((c[0] + x, c[1]), (c[0] > 0, c[0] * x)),
    "the carry itself": lambda c, x: (c, x),
    "zeros": lambda c, x: ((c[0] * 2 + x, c[1]), torch.zeros_like(x)),
    "a detached carry": lambda c, x: ((c[0].detach() + x, c[1]), c[0] * 2),
}


def scanned(function, start, xs):
    ys = []
    for x in xs:
        start, y = function(start, x)
        ys.append(y)
    stacked = [torch.stack(y) for y in zip(*ys, strict=True)] if isinstance(ys[0], tuple) else [torch.stack(ys)]
    return [*start, *stacked]


@fails_on_stock
@pytest.mark.parametrize("function", SCANNED.values(), ids=SCANNED.keys())
def test_scan_of_a_function_some_of_whose_results_have_no_gradient(function):
    def run(device, with_gradients):
        start = torch.tensor([0.5, -2.0]).to(device), torch.tensor(3).to(device)
        xs = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [3.0, 1.0]]).to(device)
        leaves = [start[0].requires_grad_(with_gradients), xs.requires_grad_(with_gradients)]
        if device == "cpu":
            results = scanned(function, start, xs)
        else:
            carry, ys = scan(function, start, xs)
            results = [*carry, *(ys if isinstance(ys, tuple) else (ys,))]
        found = [result.detach().cpu() for result in results]
        if with_gradients:
            chosen = [result.square().sum() for result in results if result.is_floating_point()]
            gradients = torch.autograd.grad(sum(chosen), leaves, allow_unused=True, materialize_grads=True)
            found += [gradient.cpu() for gradient in gradients]
        return found

    for with_gradients in (False, True):
        torch.testing.assert_close(run(DEVICE, with_gradients), run("cpu", with_gradients))


@fails_on_stock
def test_a_scan_that_carries_a_mask():
    carry, seen = scan(lambda c, x: (c & (x < 2), ~c), data([True, False, True]), data([[1.0] * 3, [3.0, 0.0, 1.0]]))
    assert carry.tolist() == [False, False, True]
    assert seen.dtype == torch.bool and seen.tolist() == [[False, True, False]] * 2


@fails_on_stock
def test_a_backward_through_a_scan_without_a_gradient_is_refused():
    _, y = scan(lambda c, x: (c + 1, x > c), data(1), data([1.0, 2.0]).requires_grad_())
    assert y.tolist() == [False, False] and not y.requires_grad


@fails_on_stock
def test_a_compiled_function_breaks_its_graph_at_a_scan():
    x = torch.arange(6.0).view(3, 2).to(DEVICE).requires_grad_()
    compiled = torch.compile(
        lambda x: scan(lambda carry, row: (carry + row, carry * row), x[0], x)[1], backend="openxla"
    )
    found = compiled(x)
    found.sum().backward()
    rows = x.detach().cpu()
    carried = torch.stack([rows[0], rows[0] * 2, rows[0] * 2 + rows[1]])
    assert torch.equal(found.cpu(), carried * rows)
    assert x.grad.cpu().tolist() == [[12.0, 18.0], [4.0, 7.0], [2.0, 5.0]]
