"""A loop that ends when every row has its end token."""

import torch


def program(device):
    finished = torch.zeros(3, dtype=torch.bool, device=device)
    steps = 0
    stream = torch.tensor([[1, 2, 3], [9, 4, 5], [6, 9, 7], [8, 8, 9], [1, 1, 1]]).to(device)
    out = []
    for row in stream:
        token = torch.where(finished, 0, row)
        finished |= token.eq(9)
        out.append(token)
        steps += 1
        if finished.all():
            break
    return steps, torch.stack(out)
