"""fork_rng around draws of the device leaves its state as it was."""

import torch


def program(device):
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
    a = torch.rand(3)
    torch.manual_seed(1)
    return bool((a == torch.rand(3)).all())
