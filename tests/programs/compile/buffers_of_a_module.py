"""A compiled module whose forward changes a buffer: batch norm in training, and a counter."""

import torch
from torch import nn


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return self.norm(x)


def program(device):
    model = Counted().to(device)
    call = torch.compile(model, backend="openxla") if device.type == "xla" else model
    outs = [call(torch.randn(6, 3).to(device)) for _ in range(2)]
    return outs, model.calls, model.norm.running_mean, model.norm.running_var
