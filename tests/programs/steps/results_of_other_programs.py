"""Two programs of equal shape that differ in what feeds what (pytorch/xla#8353)."""

import torch


def program(device):
    x, y = torch.tensor([2.0, 3.0]).to(device), torch.tensor([10.0, 20.0]).to(device)
    first = (x / y + x).cpu()
    second = (x / y + y).cpu()
    third = (y / x + x).cpu()
    return first, second, third, (x - y).cpu(), (y - x).cpu()
