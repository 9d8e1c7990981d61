"""Remainders and floor division of signs, infinities and zero."""

import torch

INF = float("inf")


def program(device):
    a = torch.tensor([5.5, -5.5, 5.5, -5.5, 0.0, 1.0, INF]).to(device)
    b = torch.tensor([2.0, 2.0, -2.0, INF, 3.0, 0.0, 2.0]).to(device)
    i, j = torch.tensor([7, -7, 7, -7]).to(device), torch.tensor([3, 3, -3, -3]).to(device)
    return a % b, a.fmod(b), a // b, i % j, i // j, i.fmod(j), torch.div(i, j, rounding_mode="trunc"), i / j
