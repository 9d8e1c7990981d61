"""VQ-VAE: nearest codes, the straight-through gradient and moving averages of codes."""

import torch
import torch.nn.functional as F


def program(device):
    codes, x = torch.randn(5, 3).to(device), torch.randn(8, 3).to(device).requires_grad_()
    distance = x.square().sum(1, keepdim=True) - 2 * x @ codes.t() + codes.square().sum(1)
    nearest = distance.argmin(1)
    quantized = F.embedding(nearest, codes)
    out = x + (quantized - x).detach()
    (out.square().sum() + 0.25 * F.mse_loss(x, quantized.detach())).backward()
    hot = F.one_hot(nearest, 5).float()
    size = torch.ones(5).to(device).mul_(0.9).add_(hot.sum(0), alpha=0.1)
    average = codes.clone().mul_(0.9).add_(hot.t() @ x.detach(), alpha=0.1) / size[:, None]
    perplexity = torch.exp(-(hot.mean(0) * (hot.mean(0) + 1e-10).log()).sum())
    return nearest, out, x.grad, average, perplexity, torch.cdist(x.detach(), codes)
