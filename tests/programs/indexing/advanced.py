"""Index tensors of several shapes, mixed with slices, None and ellipsis."""

import torch


def program(device):
    x = torch.arange(60).view(3, 4, 5).to(device)
    i, j = torch.tensor([[0], [2]]).to(device), torch.tensor([1, 3]).to(device)
    return x[i, j], x[:, j, None], x[..., j], x[i, :, j], x[[0, 2]], x[torch.tensor(1)], x[None, -1, ..., ::2]
