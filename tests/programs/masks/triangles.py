"""triu, tril and their indices, of rectangles and with offsets."""

import torch


def program(device):
    x = torch.arange(20).view(4, 5).to(device)
    row, column = torch.triu_indices(4, 5, offset=1, device=device)
    x[row, column] = -1
    low = torch.tril_indices(4, 5, offset=-1, device=device)
    return x, low, torch.ones(3, 4, dtype=torch.bool, device=device).triu(2), torch.tril(x.float(), -5)
