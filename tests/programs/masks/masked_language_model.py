"""BERT's corruption of tokens, with draws that are given: where, masked_fill, a comparison of draws."""

import torch


def program(device):
    ids, draw = torch.arange(12).view(2, 6).to(device), torch.rand(2, 6)
    special = torch.tensor([[True] + [False] * 5] * 2).to(device)
    p = torch.full((2, 6), 0.5, device=device).masked_fill_(special, 0.0)
    masked = draw.to(device) < p
    labels = ids.clone()
    labels[~masked] = -100
    ids[masked & (draw.to(device) < 0.25)] = 99
    return ids, labels
