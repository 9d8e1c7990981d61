"""Logits filtered by top-k and by top-p, as a sampler does it; the draw has one choice left."""

import torch


def program(device):
    logits = torch.randn(2, 12).to(device)
    kth = torch.topk(logits, 5).values[..., -1, None]
    filtered = logits.masked_fill(logits < kth, -float("inf"))
    ordered, order = torch.sort(filtered, descending=True)
    remove = ordered.softmax(-1).cumsum(-1) > 0.7
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = False
    filtered = filtered.masked_fill(remove.scatter(1, order, remove), -float("inf"))
    best = torch.full_like(filtered, 0.0).scatter_(1, filtered.argmax(-1, keepdim=True), 1.0)
    return filtered, torch.multinomial(best, 1)
