"""Recurrent layers and packed sequences: patches/torch_xla/recurrent-layers.

Tests marked ``fails_on_stock`` state what the topic is for.
"""

import functools
import gc

import pytest
import torch
import torch_xla
from ir_text import ir
from live_tensors import live_tensors
from lowered import on_the_cpu
from marks import fails_on_stock, passes_on_stock
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
    return on_the_cpu((output, *state, x.grad, layer.weight_ih_l0.grad))


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
def test_a_compiled_gru_is_one():
    gru, x = torch.nn.GRU(3, 2).to(DEVICE), torch.ones(4, 2, 3).to(DEVICE)
    assert torch.equal(torch.compile(gru, backend="openxla")(x)[0].cpu(), gru(x)[0].cpu())


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


def results_of(make, device, dtype=torch.float32, *, steps=3, use=None, create_graph=False, given=True, **options):
    """Results and gradients of a loss of output and last states, those in `use`, on the CPU; second ones, too."""
    torch.manual_seed(0)
    if device == "cpu" and make is torch.nn.GRU:
        make = torch.nn.modules.rnn.GRU  # torch's own
    layer = make(3, 5, **options).bfloat16().to(dtype)  # the same numbers in each dtype
    states = layer.num_layers * (1 + layer.bidirectional)
    x = torch.randn((2, steps, 3) if layer.batch_first else (steps, 2, 3))
    leaves = [t.bfloat16().to(device, dtype).requires_grad_() for t in (x, *torch.randn(2, states, 2, 5))]
    layer.to(device)
    first = tuple(leaves[1:]) if layer.mode == "LSTM" else leaves[1]
    output, last = layer(leaves[0], first if given else None)
    last = last if layer.mode == "LSTM" else (last,)
    results, leaves = (output, *last), [*leaves[: 1 + len(last) if given else 1], *layer.parameters()]
    loss = sum(t.square().sum() for t, used in zip(results, use or (1, 1, 1)[: len(results)], strict=True) if used)
    gradients = torch.autograd.grad(loss, leaves, create_graph=create_graph, allow_unused=True)
    gradients = [g for g in gradients if g is not None]
    if create_graph:
        gradients += torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves)
    return on_the_cpu((*results, *gradients))


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
    lstm = torch.nn.LSTM
    torch.testing.assert_close(
        results_of(lstm, DEVICE, **options), results_of(lstm, "cpu", **options), rtol=1e-4, atol=1e-5
    )


RELU = functools.partial(torch.nn.RNN, nonlinearity="relu")
WITH_ONE_STATE = pytest.mark.parametrize("make", [torch.nn.GRU, torch.nn.RNN, RELU], ids=["GRU", "RNN", "ReLU"])


@WITH_ONE_STATE
@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "bidirectional": True, "batch_first": True, "steps": 2},
        {"num_layers": 2, "batch_first": True},
        {"bias": False, "use": (0, 1)},
        {"given": False, "use": (1, 0), "dtype": torch.float64},
        {"steps": 1},
    ],
    ids=" ".join,
)
def test_a_layer_of_one_state_is_as_on_the_cpu(make, options):
    torch.testing.assert_close(
        results_of(make, DEVICE, **options), results_of(make, "cpu", **options), rtol=1e-4, atol=1e-5
    )


@WITH_ONE_STATE
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "both"])
def test_second_gradients_of_a_layer_of_one_state(make, bidirectional):
    options = {"create_graph": True, "bidirectional": bidirectional, "steps": 2}
    torch.testing.assert_close(
        results_of(make, DEVICE, **options), results_of(make, "cpu", **options), rtol=1e-4, atol=1e-5
    )


def cell_gradients_from_an_infinite_state(device):
    torch.manual_seed(0)
    layer, x, hidden = torch.nn.LSTM(3, 5), torch.randn(1, 2, 3), torch.zeros(1, 2, 5)
    hidden[..., 0] = float("inf")
    leaves = [t.to(device).requires_grad_() for t in (x, hidden, torch.randn(1, 2, 5))]
    layer.to(device)(leaves[0], (leaves[1], leaves[2]))[1][1].sum().backward()
    return on_the_cpu([t.grad for t in leaves])


def test_the_last_cell_alone_has_gradients_where_a_state_is_infinite():
    found, expected = map(cell_gradients_from_an_infinite_state, (DEVICE, "cpu"))
    assert all(g.isfinite().all() for g in expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def program_of(make, steps, **options):
    """The HLO of a layer's output and its parameters' gradients."""
    layer = make(3, 5, **options).to(DEVICE)
    output, _ = layer(torch.ones(steps, 2, 3, device=DEVICE))
    output.backward(torch.ones_like(output))
    return torch_xla._XLAC._get_xla_tensors_hlo([output, *(p.grad for p in layer.parameters())])


UNROLLED = {"LSTM": (torch.nn.LSTM, 1), "RNN": (torch.nn.RNN, 1), "ReLU": (RELU, 1), "GRU, both": (torch.nn.GRU, 2)}


@fails_on_stock
@pytest.mark.parametrize(("make", "directions"), UNROLLED.values(), ids=UNROLLED)
def test_each_further_step_has_one_product_forward_and_one_backward(make, directions):
    both = directions == 2
    shorter, longer = (program_of(make, steps, bidirectional=both).count(" dot(") for steps in (4, 5))
    assert longer - shorter == 2 * directions


@fails_on_stock
@pytest.mark.since("2.8", "torch_xla scans a GRU")
def test_the_loops_of_a_gru_have_one_product_each():
    hlo = program_of(torch.nn.GRU, 7)
    assert hlo.count(" while(") == 2
    assert "f32[7,5,15]" not in hlo  # the weights are not kept for each step
    assert hlo.count(" dot(") == 2 + 4  # the input's, the gates again, and two weights' gradients


@fails_on_stock
@pytest.mark.parametrize(
    ("make", "options", "most"),
    [
        (torch.nn.LSTM, {"steps": 16}, 0.006),
        pytest.param(torch.nn.GRU, {"steps": 48}, 0.005, marks=pytest.mark.since("2.8", "torch_xla scans a GRU")),
        (torch.nn.GRU, {"steps": 6, "bidirectional": True}, 0.006),
        (torch.nn.RNN, {"steps": 32}, 0.005),
        (RELU, {"steps": 16}, 0.006),
    ],
    ids=["LSTM", "GRU", "GRU, both", "RNN", "ReLU"],
)
def test_gradients_of_weights_are_summed_in_float32(make, options, most):
    found = results_of(make, DEVICE, torch.bfloat16, **options)
    exact = results_of(make, "cpu", torch.float64, **options)
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
    weights = 6 if make is torch.nn.LSTM else 4
    assert max(errors[weights : weights + 2]) < most


WITH_EACH = pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN], ids=["LSTM", "GRU", "RNN"])


@fails_on_stock
@WITH_EACH
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "both"])
def test_gradients_of_a_weight_in_float32(make, bidirectional):
    torch.manual_seed(0)
    layer = make(3, 5, bidirectional=bidirectional).bfloat16().to(DEVICE)
    for parameter in layer.parameters():
        parameter.grad_dtype = torch.float32
    layer(torch.randn(8, 2, 3).to(DEVICE, torch.bfloat16))[0].square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad.dtype == torch.float32
    grad = layer.weight_hh_l0.grad.cpu()
    assert not torch.equal(grad, grad.bfloat16().float())


@WITH_EACH
def test_the_output_may_be_written_to(make):
    layer, x = make(3, 5).to(DEVICE), torch.ones(2, 2, 3, device=DEVICE)
    output, last = layer(x)
    last = last if isinstance(last, tuple) else (last,)
    for result in (output, *last):
        result.mul_(2)
    sum(result.sum() for result in (output, *last)).backward()
    written = layer.bias_hh_l0.grad.cpu()
    layer.zero_grad()
    output, last = layer(x)
    last = last if isinstance(last, tuple) else (last,)
    (2 * sum(result.sum() for result in (output, *last))).backward()
    torch.testing.assert_close(layer.bias_hh_l0.grad.cpu(), written)


@WITH_EACH
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "both"])
def test_without_gradients(make, mode, bidirectional):
    layer, x = make(3, 5, bidirectional=bidirectional).to(DEVICE), torch.ones(3, 2, 3, device=DEVICE)
    with mode():
        found = layer(x)[0]
    torch.testing.assert_close(found.cpu(), layer(x)[0].detach().cpu())
    assert not found.requires_grad


@WITH_EACH
def test_under_autocast(make):
    layer, x = make(3, 5).to(DEVICE), torch.ones(3, 2, 3, device=DEVICE)
    with torch.autocast("xla", torch.bfloat16):
        found = layer(x)[0]
    found.float().sum().backward()
    torch.testing.assert_close(found.float().cpu(), layer(x)[0].detach().cpu(), rtol=0.02, atol=0.02)
    assert layer.weight_hh_l0.grad.dtype == torch.float32


@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.RNN, torch.nn.GRU], ids=lambda make: make.__name__)
def test_a_pack_hook_that_raises_leaves_no_tensors(make):
    """A checkpoint without reentrance computes a forward pass again up to its last saved tensor, and raises there."""
    layer, x = make(2, 3).to(DEVICE), torch.randn(4, 2, 2).to(DEVICE)
    packed = []

    def forward(most):
        def pack(tensor):
            packed.append(tensor.shape)
            if len(packed) == most:
                raise InterruptedError
            return tensor.detach()

        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x)

    def live():
        gc.collect()  # of frames that the exception went through
        return live_tensors()

    forward(most=None)
    most, before = len(packed), live()
    for _ in range(2):
        with pytest.raises(InterruptedError):
            forward(most)
    assert live() == before


@passes_on_stock
def test_a_written_last_state_changes_no_gradient():
    layer, x = torch.nn.LSTM(2, 3).to(DEVICE), torch.randn(4, 2, 2).to(DEVICE)

    def gradient(written):
        layer.zero_grad()
        output, states = layer(x)
        with torch.no_grad():
            for state in states if written else ():
                state.add_(1)
        output.square().sum().backward()
        return layer.weight_hh_l0.grad.cpu()

    assert torch.equal(gradient(written=True), gradient(written=False))
