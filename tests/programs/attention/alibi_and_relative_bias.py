"""ALiBi slopes and T5's buckets of relative positions."""

import math

import torch


def program(device):
    slopes = torch.pow(2.0, -torch.arange(1, 5, device=device) * 2.0)
    position = torch.arange(20, device=device)
    relative = position[None] - position[:, None]
    alibi = slopes[:, None, None] * relative.clamp(max=0)
    distance = relative.abs()
    large = 8 + (torch.log(distance.float() / 8) / math.log(128 / 8) * 8).to(torch.long)
    large = torch.min(large, torch.full_like(large, 15))
    buckets = (relative > 0).to(torch.long) * 16 + torch.where(distance < 8, distance, large)
    return alibi, buckets
