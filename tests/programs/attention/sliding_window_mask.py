"""A causal mask with a sliding window, made of positions by comparison."""

import torch


def program(device):
    position = torch.arange(10, device=device)
    distance = position[:, None] - position[None]
    mask = (distance >= 0) & (distance < 4)
    blocks = position[:, None] // 3 == position[None] // 3
    additive = torch.zeros(10, 10, device=device).masked_fill(~(mask | blocks), float("-inf"))
    return mask, additive, additive.softmax(-1)
