"""0-d tensors of the CPU beside tensors of the device, of integers and floats (pytorch/xla#6538)."""

import torch


def program(device):
    x, i = torch.arange(3.0).to(device), torch.arange(3).to(device)
    return x * torch.tensor(2.0), i + torch.tensor(2), i * torch.tensor(1.5), x + torch.tensor(3), i > torch.tensor(1)
