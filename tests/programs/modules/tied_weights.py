"""Tied weights stay tied when the model is sent to the device (pytorch/xla#7042)."""

import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def program(device):
    model = Tied().to(device)
    loss = model(torch.tensor([1, 2, 3]).to(device)).logsumexp(-1).sum()
    loss.backward()
    return loss, model.head.weight is model.embed.weight, model.embed.weight.grad, len(list(model.parameters()))
