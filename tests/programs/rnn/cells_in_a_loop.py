"""LSTMCell, GRUCell and RNNCell in a Python loop, with truncated backpropagation."""

import torch
from torch import nn


def program(device):
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
