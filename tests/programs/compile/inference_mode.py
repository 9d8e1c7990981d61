"""A compiled model under inference_mode, as serving code calls it."""

import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(device).eval()
    call = torch.compile(model, backend="openxla") if device.type == "xla" else model
    with torch.inference_mode():
        return call(torch.ones(3, 4).to(device)), call(torch.zeros(3, 4).to(device))
