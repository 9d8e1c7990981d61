"""uint8 and int8 wrap around; shifts, negation and sums of them."""

import torch


def program(device):
    u = torch.tensor([250, 5, 0], dtype=torch.uint8).to(device)
    i = torch.tensor([127, -128, -1], dtype=torch.int8).to(device)
    return u + 10, u * 2, -u, ~u, u.sum(), u << 1, u >> 2, i + 1, i * 2, i.abs(), i // 2, i >> 1, i.float() / 2
