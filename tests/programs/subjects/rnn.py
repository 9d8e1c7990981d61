"""Programs: rnn."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def cells_in_a_loop(device):
    """LSTMCell, GRUCell and RNNCell in a Python loop, with truncated backpropagation."""
    results = []
    for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
        cell = kind(3, 4).to(device)
        state, x = None, torch.randn(6, 2, 3).to(device)
        for step in x.chunk(2):
            for row in step:
                state = cell(row, state)
            hidden = state[0] if isinstance(state, tuple) else state
            hidden.sum().backward()
            state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        results.append([p.grad for p in cell.parameters()])
    return results


def gru(device):
    """A GRU of two layers with a first state."""
    model = nn.GRU(4, 5, num_layers=2).to(device)
    x, h0 = torch.randn(6, 3, 4).to(device).requires_grad_(), torch.randn(2, 3, 5).to(device)
    out, h = model(x, h0)
    (out.square().sum() + h.sum()).backward()
    return out, h, x.grad, [p.grad for p in model.parameters()]


def gru_of_packed_sequences(device):
    """A bidirectional GRU of sequences that are not sorted by length (pytorch/xla#1522)."""
    model = nn.GRU(4, 5, bidirectional=True, batch_first=True).to(device)
    x = torch.randn(3, 6, 4).to(device)
    packed = pack_padded_sequence(x, torch.tensor([3, 6, 1]), batch_first=True, enforce_sorted=False)
    out, h = model(packed)
    padded, _ = pad_packed_sequence(out, batch_first=True, total_length=7)
    padded.square().sum().backward()
    return padded, h, model.weight_hh_l0.grad


def gru_on_the_cpu(device):
    """A GRU on the CPU works beside torch_xla."""
    model = nn.GRU(4, 5)
    x = torch.randn(6, 3, 4)
    out, h = model(x)
    out.sum().backward()
    return out, h, model.weight_hh_l0.grad


def lstm_bidirectional(device):
    """A bidirectional LSTM of two layers, its states and its gradients."""
    model = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True).to(device)
    x = torch.randn(3, 6, 4).to(device).requires_grad_()
    out, (h, c) = model(x)
    (out.sum() + h.square().sum() + c.sum()).backward()
    return out, h, c, x.grad, [p.grad for p in model.parameters()]


def lstm_of_packed_sequences(device):
    """An LSTM of sequences of several lengths, packed (pytorch/xla#1522)."""
    model = nn.LSTM(4, 5, batch_first=True).to(device)
    x = torch.randn(3, 6, 4).to(device)
    packed = pack_padded_sequence(x, torch.tensor([6, 4, 2]), batch_first=True)
    out, (h, _) = model(packed)
    padded, lengths = pad_packed_sequence(out, batch_first=True)
    (padded.sum() + h.sum()).backward()
    return padded, lengths, h, model.weight_ih_l0.grad


def lstm_with_projection(device):
    """An LSTM with a projection of its hidden state."""
    model = nn.LSTM(4, 8, proj_size=3).to(device)
    x = torch.randn(5, 2, 4).to(device)
    out, (h, c) = model(x)
    out.sum().backward()
    return out, h, c, model.weight_hr_l0.grad


def vanilla_with_dropout(device):
    """An RNN with ReLU; with dropout between its layers in evaluation mode."""
    model = nn.RNN(4, 5, num_layers=2, nonlinearity="relu", dropout=0.5).to(device).eval()
    out, h = model(torch.randn(6, 3, 4).to(device))
    return out, h
