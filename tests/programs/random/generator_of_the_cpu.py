"""Draws with a generator of the CPU, sent to the device, are those of the CPU; diffusers does so."""

import torch


def program(device):
    g = torch.Generator().manual_seed(3)
    latents = torch.randn(2, 3, generator=g).to(device)
    noise = torch.randn(2, 3, generator=torch.Generator().manual_seed(3), dtype=torch.bfloat16)
    return latents * 0.5, noise.to(device), torch.randperm(5, generator=g).to(device)
