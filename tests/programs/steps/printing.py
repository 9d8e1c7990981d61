"""A tensor of the device is printed with its values."""

import torch


def program(device):
    x = torch.arange(3.0).to(device)
    return repr(x).split(", device=")[0].rstrip(")"), str(x.dtype), x.numel(), x.element_size(), x.is_floating_point()
