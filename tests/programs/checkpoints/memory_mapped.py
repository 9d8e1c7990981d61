"""torch.load(mmap=True) of tensors that were saved from the device, and then sent to it."""

import torch


def program(device):
    torch.save([torch.arange(6.0).to(device), torch.ones(2, dtype=torch.bfloat16).to(device)], "state.pt")
    a, b = torch.load("state.pt", mmap=True, weights_only=True, map_location="cpu")
    direct = torch.load("state.pt", mmap=True, weights_only=True, map_location=device.type)
    return a.to(device) + 1, b.to(device), direct
