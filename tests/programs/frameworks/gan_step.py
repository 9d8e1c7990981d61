"""A GAN's alternating steps, with detach and frozen parameters."""

import torch
import torch.nn.functional as F
from torch import nn


def program(device):
    g, d = nn.Linear(2, 4).to(device), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).to(device)
    go, do = torch.optim.Adam(g.parameters(), 1e-2, (0.5, 0.9)), torch.optim.Adam(d.parameters(), 1e-2, (0.5, 0.9))
    real, losses = torch.randn(5, 4).to(device), []
    for _ in range(2):
        fake = g(torch.ones(5, 2).to(device))
        do.zero_grad()
        d_loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        d_loss.backward()
        do.step()
        d.requires_grad_(False)
        go.zero_grad()
        g_loss = F.softplus(-d(fake)).mean()
        g_loss.backward()
        go.step()
        d.requires_grad_(True)
        losses += [d_loss, g_loss]
    return losses, list(g.parameters()), list(d.parameters())
