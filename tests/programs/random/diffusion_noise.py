"""A step of diffusion training: noise by a schedule that is indexed with timesteps, as 0-d and 1-d tensors."""

import torch


def program(device):
    betas = torch.linspace(1e-4, 0.02, 100, device=device)
    alphas = (1 - betas).cumprod(0)
    x, noise = torch.randn(3, 2, 4, 4).to(device), torch.randn(3, 2, 4, 4).to(device)
    t = torch.tensor([0, 50, 99]).to(device)
    a = alphas[t].sqrt().view(-1, 1, 1, 1)
    noisy = a * x + (1 - alphas[t]).sqrt().view(-1, 1, 1, 1) * noise
    velocity = a * noise - (1 - a.square()).sqrt() * x
    half = torch.exp(-torch.arange(4, device=device) * 2.3)
    embedded = torch.cat([(t[:, None] * half).sin(), (t[:, None] * half).cos()], -1)
    return noisy, velocity, embedded, alphas[10] / alphas[9]
