"""Compiled functions that return an argument as it is, detached, and beside other results"""

import torch


def program(device):
    hidden = torch.arange(6.0).view(2, 3).to(device)
    backend = "openxla" if device.type == "xla" else "eager"
    with_others = torch.compile(lambda x: (x * 2, x.detach(), x), backend=backend)
    alone = torch.compile(lambda x: (x.detach(), x), backend=backend)
    doubled, detached, same = with_others(hidden)
    detached.add_(1)
    again = with_others(hidden)
    return doubled, detached, same, hidden, again, alone(hidden), same is hidden
