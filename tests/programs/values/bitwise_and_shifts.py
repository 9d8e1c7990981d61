"""Bitwise operations and shifts of negative numbers."""

import torch


def program(device):
    a, b = torch.tensor([-8, 7, 255, 0]).to(device), torch.tensor([1, 2, 3, 4]).to(device)
    i = a.to(torch.int32)
    return a & b, a | b, a ^ b, ~a, a << b, a >> b, i >> 1, i << 31, (a > 0) ^ (b > 2), a.bool() | b.bool()
