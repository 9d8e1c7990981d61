"""Recurrent layers and packed sequences: patches/torch_xla/recurrent-layers.

Tests marked ``fails_on_stock`` state what the topic is for.
"""

import pytest
import torch
import torch_xla
from ir_text import ir
from marks import fails_on_stock
from tensors import DEVICE
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

LENGTHS = torch.tensor([2, 1])


def run(make, device, lengths=None, *, enforce_sorted=True, **options):
    """The output, its last state, and the gradients of the input and a weight, on the CPU."""
    torch.manual_seed(0)
    layer, x = make(2, 3, **options), torch.randn(2, 2, 2)
    layer, x = layer.to(device), x.to(device).requires_grad_()
    given = x.transpose(0, 1) if options.get("batch_first") else x
    if lengths is not None:
        first = options.get("batch_first", False)
        given = pack_padded_sequence(given, lengths, batch_first=first, enforce_sorted=enforce_sorted)
    output, state = layer(given)
    if lengths is not None:
        output, found = pad_packed_sequence(output)
        assert torch.equal(found, lengths)
    output.square().sum().backward()
    state = state if isinstance(state, tuple) else (state,)
    return [t.detach().cpu() for t in (output, *state, x.grad, layer.weight_ih_l0.grad)]


@fails_on_stock
@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.RNN, torch.nn.GRU], ids=lambda make: make.__name__)
def test_packed_sequences_are_as_on_the_cpu(make):
    torch.testing.assert_close(run(make, DEVICE, LENGTHS), run(make, "cpu", LENGTHS))


@fails_on_stock
def test_packed_sequences_of_other_forms():
    torch.testing.assert_close(
        run(torch.nn.RNN, DEVICE, LENGTHS, batch_first=True), run(torch.nn.RNN, "cpu", LENGTHS, batch_first=True)
    )
    lengths = torch.tensor([1, 2])
    torch.testing.assert_close(
        run(torch.nn.RNN, DEVICE, lengths, enforce_sorted=False),
        run(torch.nn.RNN, "cpu", lengths, enforce_sorted=False),
    )


@pytest.mark.fails_on_stock("2.9", "2.8")
def test_a_gru_on_the_cpu():
    output, state, x_grad, _ = run(torch.nn.GRU, "cpu")
    assert output.shape == (*x_grad.shape[:2], 3) and torch.equal(state[0], output[-1])


@fails_on_stock
def test_ir_of_packing():
    packed = pack_padded_sequence(torch.ones(2, 2, 2).to(DEVICE), LENGTHS)
    assert packed.batch_sizes.tolist() == [2, 1]
    ir(packed.data).expect("""\
%0 = s64[3] xla::device_data()
%1 = f32[2,2,2] xla::device_data()
%2 = f32[4,2] aten::view(%1)
%3 = f32[3,2] aten::index_select(%2, %0)
return %3
""")


@fails_on_stock
def test_lengths_that_torch_refuses():
    x = torch.ones(2, 2, 2).to(DEVICE)
    for lengths, message in ((LENGTHS.flip(0), "sorted"), (torch.tensor([2, 0]), "greater than 0")):
        with pytest.raises(RuntimeError, match=message):
            pack_padded_sequence(x, lengths)
    with pytest.raises(RuntimeError, match="CPU int64 tensor, but got a tensor on xla"):
        torch._pack_padded_sequence(x, LENGTHS.to(DEVICE), False)


def lstm(device, dtype=torch.float32, *, steps=3, use=(1, 1, 1), create_graph=False, given=True, **options):
    """Results and gradients of a loss of output, last state and last cell, on the CPU; second ones, too."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 5, **options).bfloat16().to(dtype)  # the same numbers in each dtype
    states = layer.num_layers * (1 + layer.bidirectional)
    x = torch.randn((2, steps, 3) if layer.batch_first else (steps, 2, 3))
    leaves = [t.bfloat16().to(device, dtype).requires_grad_() for t in (x, *torch.randn(2, states, 2, 5))]
    layer.to(device)
    output, (hidden, cell) = layer(leaves[0], (leaves[1], leaves[2]) if given else None)
    results, leaves = (output, hidden, cell), [*leaves[: 3 if given else 1], *layer.parameters()]
    loss = sum(t.square().sum() for t, used in zip(results, use, strict=True) if used)
    gradients = torch.autograd.grad(loss, leaves, create_graph=create_graph, allow_unused=True)
    gradients = [g for g in gradients if g is not None]
    if create_graph:
        gradients += torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves)
    return [t.detach().cpu() for t in (*results, *gradients)]


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False, "use": (0, 0, 1)},
        {"given": False, "use": (0, 1, 0)},
        {"bidirectional": True, "create_graph": True, "steps": 2},
        {"steps": 1},
        {"proj_size": 2, "given": False},
    ],
    ids=" ".join,
)
def test_an_lstm_is_as_on_the_cpu(options):
    torch.testing.assert_close(lstm(DEVICE, **options), lstm("cpu", **options), rtol=1e-4, atol=1e-5)


def cell_gradients_from_an_infinite_state(device):
    torch.manual_seed(0)
    layer, x, hidden = torch.nn.LSTM(3, 5), torch.randn(1, 2, 3), torch.zeros(1, 2, 5)
    hidden[..., 0] = float("inf")
    leaves = [t.to(device).requires_grad_() for t in (x, hidden, torch.randn(1, 2, 5))]
    layer.to(device)(leaves[0], (leaves[1], leaves[2]))[1][1].sum().backward()
    return [t.grad.cpu() for t in leaves]


def test_the_last_cell_alone_has_gradients_where_a_state_is_infinite():
    found, expected = map(cell_gradients_from_an_infinite_state, (DEVICE, "cpu"))
    assert all(g.isfinite().all() for g in expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def dots_of_an_lstm(steps):
    layer = torch.nn.LSTM(3, 5).to(DEVICE)
    output, _ = layer(torch.ones(steps, 2, 3, device=DEVICE))
    output.backward(torch.ones_like(output))
    found = torch_xla._XLAC._get_xla_tensors_hlo([output, *(p.grad for p in layer.parameters())])
    return found.count(" dot(")


@fails_on_stock
def test_each_further_step_of_an_lstm_has_one_product_forward_and_one_backward():
    assert dots_of_an_lstm(5) - dots_of_an_lstm(4) == 2


@fails_on_stock
def test_gradients_of_an_lstms_weights_are_summed_in_float32():
    found, exact = lstm(DEVICE, torch.bfloat16, steps=16), lstm("cpu", torch.float64, steps=16)
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
    assert max(errors[6:8]) < 0.006


def test_the_output_of_an_lstm_may_be_written_to():
    layer, x = torch.nn.LSTM(3, 5).to(DEVICE), torch.ones(2, 2, 3, device=DEVICE)
    output, (hidden, cell) = layer(x)
    for result in (output, hidden, cell):
        result.mul_(2)
    (output.sum() + hidden.sum() + cell.sum()).backward()
    written = layer.bias_hh_l0.grad.cpu()
    layer.zero_grad()
    output, (hidden, cell) = layer(x)
    (2 * (output.sum() + hidden.sum() + cell.sum())).backward()
    torch.testing.assert_close(layer.bias_hh_l0.grad.cpu(), written)
