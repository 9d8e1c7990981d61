"""round to even and to decimals, floor, frac and casts of halves."""

import torch


def program(device):
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e10]).to(device)
    return x.round(), x.floor(), x.ceil(), x.frac(), (x / 3).round(decimals=2), x.bfloat16().round(), x.double().round()
