"""Embedding with padding, a maximal norm and gradients scaled by frequency."""

import torch
from torch import nn


def program(device):
    ids = torch.tensor([[0, 1, 1], [2, 0, 1]]).to(device)
    results = []
    for options in ({"padding_idx": 0}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}):
        embed = nn.Embedding(4, 3, **options).to(device)
        out = embed(ids)
        out.square().sum().backward()
        results += [out, embed.weight.grad]
    return results
