"""A capacity for each expert: positions by cumsum of one-hots, dispatch and combination by einsum."""

import torch
import torch.nn.functional as F


def program(device):
    x = torch.randn(8, 4).to(device)
    logits = torch.randn(8, 3).to(device).requires_grad_()
    gate, expert = logits.softmax(-1).max(-1)
    mask = F.one_hot(expert, 3)
    place = (mask.cumsum(0) - 1) * mask
    kept = (place < 2) & mask.bool()
    slot = F.one_hot((place * mask).sum(1).clamp(max=1), 2)
    combine = gate[:, None, None] * kept[:, :, None] * slot[:, None]
    sent = torch.einsum("tec,td->ecd", combine.bool().float(), x)
    out = torch.einsum("tec,ecd->td", combine, sent)
    out.sum().backward()
    return sent, out, logits.grad
