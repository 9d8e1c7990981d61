"""Margin losses of embeddings."""

import torch
import torch.nn.functional as F


def program(device):
    a, p, n = (torch.randn(5, 8).to(device).requires_grad_() for _ in range(3))
    sign = torch.tensor([1, -1, 1, 1, -1]).to(device)
    loss = F.triplet_margin_loss(a, p, n, margin=0.5, swap=True) + F.cosine_embedding_loss(a, p, sign, margin=0.1)
    loss = loss + F.margin_ranking_loss(a.sum(1), n.sum(1), sign.float())
    loss.backward()
    return loss, a.grad, p.grad, n.grad
