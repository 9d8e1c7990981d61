"""Tensors with Python numbers and 0-d tensors: what dtype the result has."""

import torch


def program(device):
    half, whole, flag = (torch.ones(2, dtype=d).to(device) for d in (torch.bfloat16, torch.int32, torch.bool))
    zero = torch.tensor(2.0).to(device)
    results = [half + 1, half * 2.5, whole + 1.5, flag + 1, flag * 1.0, whole / 2, whole // 2, whole**2, half + zero]
    results += [whole + zero, zero + whole.long(), torch.where(flag, half, 1.0), half.sum(), whole.sum(), flag.sum()]
    results += [whole.float().mean(), torch.stack([half, half]).mean(0), flag & True, whole % 3, -half]
    return results
