"""Positions of left-padded prompts, from the mask's cumsum."""

import torch


def program(device):
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).to(device)
    position = mask.long().cumsum(-1) - 1
    position.masked_fill_(mask == 0, 1)
    by_bool = mask.bool().cumsum(-1)
    return position, by_bool, position[:, -1:] + 1
