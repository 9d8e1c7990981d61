"""A default dtype of float64, and what is made with it."""

import torch


def program(device):
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.tensor([1.0, 2.0]).to(device)
        whole = torch.tensor([1, 2]).to(device)
        return x, whole / 2, torch.ones(2, device=device), torch.arange(0, 1, 0.5, device=device), whole.sqrt()
    finally:
        torch.set_default_dtype(torch.float32)
