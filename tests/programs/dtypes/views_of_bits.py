"""view(dtype): the bits of floats as integers."""

import torch


def program(device):
    x = torch.tensor([1.0, -0.0, float("inf"), 2.5]).to(device)
    bits = x.view(torch.int32)
    halves = x.bfloat16().view(torch.int16)
    return bits, (bits >> 23) & 0xFF, halves, bits.view(torch.float32)
