"""arange with fractions, of integers, downwards, and linspace of integers."""

import torch


def program(device):
    return (
        torch.arange(0, 1, 0.1, device=device), torch.arange(5, 0, -2, device=device), torch.arange(3.0, device=device),
        torch.arange(1, 6, 2, dtype=torch.bfloat16, device=device), torch.linspace(0, 1, 5, device=device),
        torch.linspace(0, 10, 4, dtype=torch.int64, device=device), torch.logspace(0, 2, 3, device=device),
        torch.arange(0, 1, 1 / 3, device=device).shape, torch.linspace(1, 1, 1, device=device),
    )  # fmt: skip
