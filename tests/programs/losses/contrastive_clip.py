"""CLIP's contrastive loss: normalized features, a learnt temperature, both directions."""

import torch
import torch.nn.functional as F
from torch import nn


def program(device):
    image, text = (torch.randn(4, 16).to(device).requires_grad_() for _ in range(2))
    scale = nn.Parameter(torch.tensor(2.6593).to(device))
    logits = scale.exp().clamp(max=100) * F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).t()
    labels = torch.arange(4, device=device)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    loss.backward()
    return loss, image.grad, text.grad, scale.grad
