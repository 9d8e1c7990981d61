"""clamp with one bound, with tensors as bounds, of infinities and NaN."""

import torch

VALUES = [float("-inf"), -3.5, -0.0, 0.0, 2.0, float("inf"), float("nan")]


def program(device):
    x = torch.tensor(VALUES).to(device)
    low = torch.tensor([0.0] * 7).to(device)
    return x.clamp(max=0), x.clamp(min=0), x.clamp(min=low), x.clamp(-1, 1), x.bfloat16().clamp(max=1), x.clamp_min(-2)
