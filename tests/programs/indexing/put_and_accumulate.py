"""index_put with repeated indices, index_add, index_copy, index_fill and take."""

import torch


def program(device):
    x = torch.zeros(5).to(device)
    index = torch.tensor([1, 1, 3]).to(device)
    x.index_put_((index,), torch.tensor([1.0, 2.0, 4.0]).to(device), accumulate=True)
    y = (
        torch.zeros(3, 2)
        .to(device)
        .index_add(0, torch.tensor([2, 2, 0]).to(device), torch.ones(3, 2).to(device), alpha=2)
    )
    z = y.index_fill(1, torch.tensor([0]).to(device), -1).index_copy(
        0, index[2:] - 2, torch.full((1, 2), 9.0).to(device)
    )
    return x, y, z, y.take(torch.tensor([0, 5]).to(device)), z.index_select(0, torch.tensor([2, 0]).to(device))
