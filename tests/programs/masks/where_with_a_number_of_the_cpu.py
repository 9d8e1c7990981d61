"""where(mask, x, a 0-d tensor of the CPU), as detectors write it (pytorch/xla#1749)."""

import torch


def program(device):
    x = torch.tensor([1.0, float("nan"), 3.0]).to(device)
    return torch.where(torch.isnan(x), torch.tensor(0.0), x), torch.where(x > 2, x, 0.5)
