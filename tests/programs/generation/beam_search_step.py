"""A step of beam search: flat top-k over beams and words, and the reordering of a cache."""

import torch


def program(device):
    scores = torch.randn(2, 3, 7).to(device).log_softmax(-1) + torch.randn(2, 3, 1).to(device)
    best, index = scores.view(2, -1).topk(6, dim=1, largest=True, sorted=True)
    beam, word = torch.div(index, 7, rounding_mode="floor"), index % 7
    cache = torch.randn(6, 4).to(device)
    reordered = cache.index_select(0, (beam[:, :3] + torch.arange(2, device=device)[:, None] * 3).view(-1))
    return best, beam, word, reordered
