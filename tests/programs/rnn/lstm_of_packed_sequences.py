"""An LSTM of sequences of several lengths, packed (pytorch/xla#1522)."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def program(device):
    model = nn.LSTM(4, 5, batch_first=True).to(device)
    x = torch.randn(3, 6, 4).to(device)
    packed = pack_padded_sequence(x, torch.tensor([6, 4, 2]), batch_first=True)
    out, (h, _) = model(packed)
    padded, lengths = pad_packed_sequence(out, batch_first=True)
    (padded.sum() + h.sum()).backward()
    return padded, lengths, h, model.weight_ih_l0.grad
