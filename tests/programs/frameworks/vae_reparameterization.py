"""A variational auto-encoder with noise that is given: both terms of its loss."""

import torch
import torch.nn.functional as F
from torch import nn


def program(device):
    encode, decode = nn.Linear(6, 4).to(device), nn.Linear(2, 6).to(device)
    x, noise = torch.rand(3, 6).to(device), torch.randn(3, 2).to(device)
    mu, log_var = encode(x).chunk(2, -1)
    z = mu + noise * (0.5 * log_var).exp()
    rebuilt = decode(z).sigmoid()
    kl = -0.5 * (1 + log_var - mu.square() - log_var.exp()).sum(-1).mean()
    loss = F.binary_cross_entropy(rebuilt, x, reduction="sum") / 3 + kl
    loss.backward()
    return loss, kl, [p.grad for m in (encode, decode) for p in m.parameters()]
