"""A bidirectional GRU of sequences that are not sorted by length (pytorch/xla#1522)."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def program(device):
    model = nn.GRU(4, 5, bidirectional=True, batch_first=True).to(device)
    x = torch.randn(3, 6, 4).to(device)
    packed = pack_padded_sequence(x, torch.tensor([3, 6, 1]), batch_first=True, enforce_sorted=False)
    out, h = model(packed)
    padded, _ = pad_packed_sequence(out, batch_first=True, total_length=7)
    padded.square().sum().backward()
    return padded, h, model.weight_hh_l0.grad
