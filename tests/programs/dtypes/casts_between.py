"""Casts from floats to integers and back, truncation and bool."""

import torch


def program(device):
    x = torch.tensor([-1.9, -0.5, 0.0, 0.5, 1.9, 255.5]).to(device)
    kinds = (torch.int8, torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.float64)
    return [x[:5].to(kind) for kind in kinds], x.to(torch.int32).to(torch.uint8), x.double().float()
