"""How many tokens of a draft are accepted: cumprod of a comparison."""

import torch


def program(device):
    draft = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]).to(device)
    target = torch.tensor([[1, 2, 0, 4, 9], [5, 6, 7, 8, 3]]).to(device)
    same = (draft == target[:, :-1]).to(torch.int32)
    accepted = same.cumprod(1).sum(1)
    return accepted, target.gather(1, accepted[:, None].long()), accepted.dtype
