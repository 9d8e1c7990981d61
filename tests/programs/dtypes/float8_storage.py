"""Weights kept in float8 with a scale, and widened for the product."""

import torch


def program(device):
    w = torch.tensor([[0.1, -3.0, 448.0], [1.0, 0.0, 2.0**-9]])
    stored = w.to(device).to(torch.float8_e4m3fn)
    wide = stored.to(torch.float32)
    other = w.to(device).to(torch.float8_e5m2).to(torch.bfloat16)
    return wide, other, str(stored.dtype), stored.element_size()
