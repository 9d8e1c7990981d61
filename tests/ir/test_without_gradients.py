"""linear, matmul and layer_norm without gradients: the nodes that torch composes, with one wrapper for all of them.

patches/torch_xla/lean-functionalization
"""

import pytest
import torch
from ir_text import ir
from marks import passes_on_stock
from tensors import DEVICE, bf16, f16, f32
from torch.autograd import forward_ad
from torch.nn import functional


def numbers(*shape, dtype=f32):
    return (torch.arange(torch.Size(shape).numel()) % 11 / 4 - 1).reshape(shape).to(dtype)


X, W, B = numbers(2, 3, 8), numbers(5, 8), numbers(5)
Q = numbers(2, 3, 4, 8)
CALLS = {
    "linear": (functional.linear, X, W, B),
    "linear without bias": (functional.linear, X, W),
    "linear of a matrix": (functional.linear, X[0], W, B),
    "linear of a matrix without bias": (functional.linear, X[0], W),
    "linear of a vector": (functional.linear, X[0, 0], W, B),
    "linear of four dimensions": (functional.linear, Q, W, B),
    "linear with a vector": (functional.linear, X, W[0]),
    "linear of what was transposed": (lambda x, w: functional.linear(x.transpose(0, 1), w), X, W),
    "linear of nothing": (functional.linear, X[:0], W, B),
    "matmul of a matrix": (torch.matmul, X, W.T),
    "matmul of a vector": (torch.matmul, X, W[0]),
    "matmul of batches": (torch.matmul, Q, Q.mT),
    "matmul of what was transposed": (lambda q: q.transpose(1, 2) @ q.transpose(1, 2).mT, Q),
    "matmul, broadcast": (torch.matmul, Q, numbers(3, 8, 2)),
    "matmul with a batch": (torch.matmul, W, numbers(2, 8, 3)),
    "layer_norm": (lambda x, w, b: functional.layer_norm(x, (8,), w, b), X, W[0], W[1]),
    "layer_norm of two dimensions": (lambda x, w, b: functional.layer_norm(x, (3, 8), w, b), X, X[0], X[1]),
    "layer_norm of all": (lambda x, w, b: functional.layer_norm(x, (2, 3, 8), w, b), X, X, X),
    "layer_norm without bias": (lambda x, w: functional.layer_norm(x, (8,), w), X, W[0]),
    "layer_norm without parameters": (lambda x: functional.layer_norm(x, (8,)), X),
    "attention": (lambda q: functional.scaled_dot_product_attention(q, q, q), Q),
}


def results(call, dtype, *, grad, device=DEVICE):
    function, *tensors = CALLS[call]
    # Parameters require gradients: of others torch has no gradients in both modes.
    tensors = [t.to(device, dtype).requires_grad_() for t in tensors]
    with torch.set_grad_enabled(grad):
        return function(*tensors)


@passes_on_stock
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_graph_without_gradients_is_the_graph_with_gradients(call, dtype):
    with_gradients, without = (results(call, dtype, grad=grad) for grad in (True, False))
    assert with_gradients.requires_grad
    assert not without.requires_grad
    assert ir(without) == ir(with_gradients)
    assert (without.shape, without.dtype, without.stride()) == (
        with_gradients.shape,
        with_gradients.dtype,
        with_gradients.stride(),
    )


@passes_on_stock
@pytest.mark.parametrize("call", CALLS)
def test_values(call):
    expected = results(call, f32, grad=False, device="cpu")
    torch.testing.assert_close(results(call, f32, grad=False).cpu(), expected, rtol=1e-4, atol=1e-4)


@passes_on_stock
@pytest.mark.parametrize("call", ["linear", "matmul of batches", "layer_norm", "attention"])
def test_autocast_is_that_of_a_step_with_gradients(call):
    with torch.autocast("xla", dtype=bf16):
        with_gradients, without = (results(call, f32, grad=grad) for grad in (True, False))
    assert ir(without) == ir(with_gradients)


@passes_on_stock
def test_tangents_are_carried_on():
    function, x, *parameters = CALLS["linear"]
    x, *parameters = (t.to(DEVICE) for t in (x, *parameters))
    with torch.no_grad(), forward_ad.dual_level():
        result = function(forward_ad.make_dual(x, torch.ones_like(x)), *parameters)
        tangent = forward_ad.unpack_dual(result).tangent
    torch.testing.assert_close(tangent.cpu(), W.sum(-1).expand(2, 3, 5))


@passes_on_stock
@pytest.mark.since("2.9", "mm that checks its sizes")
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (functional.linear, [(2, 3, 8), (5, 7)]),
        (functional.linear, [(2, 3, 8), (5, 8), (4,)]),
        (torch.matmul, [(2, 3, 8), (2, 7, 3)]),
        (torch.matmul, [(2, 3, 8), (3, 8, 3)]),
        (lambda x, w, b: functional.layer_norm(x, (8,), w, b), [(2, 3, 8), (7,), (7,)]),
    ],
)
def test_errors_are_those_of_a_step_with_gradients(function, shapes):
    def message(grad):
        tensors = [torch.ones(shape, device=DEVICE, requires_grad=True) for shape in shapes]
        with torch.set_grad_enabled(grad), pytest.raises(RuntimeError) as error:
            function(*tensors)
        return str(error.value)

    assert message(grad=False) == message(grad=True)


@passes_on_stock
def test_results_are_written_to():
    x = X.to(DEVICE)
    with torch.no_grad():
        result = functional.linear(x, W.to(DEVICE), B.to(DEVICE))
        result[0].zero_()
        result.add_(1)
    assert result[0].eq(1).all()
    assert torch.equal(x.cpu(), X)


@passes_on_stock
def test_weights_that_were_written_to_are_read():
    weight = torch.zeros_like(W).to(DEVICE)
    with torch.no_grad():
        weight[1:].copy_(W[1:].to(DEVICE))
        weight[0] = W[0].to(DEVICE)
        result = functional.linear(X.to(DEVICE), weight)
    torch.testing.assert_close(result.cpu(), functional.linear(X, W))
