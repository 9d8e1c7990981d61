"""Products of broadcast batches, vectors and empty dimensions."""

import torch


def program(device):
    a, b, v = torch.randn(2, 1, 3, 4).to(device), torch.randn(5, 4, 2).to(device), torch.randn(4).to(device)
    empty = torch.zeros(3, 0).to(device)
    return a @ b, a @ v, v @ b, v @ v, empty @ empty.t(), torch.addmm(torch.ones(2).to(device), b[0].t(), b[0])
