"""torch.manual_seed makes draws of the device repeat (pytorch/xla#7340)."""

import torch


def program(device):
    def draws():
        torch.manual_seed(7)
        return [f((50,), device=device).cpu() for f in (torch.rand, torch.randn)]

    one, two = draws(), draws()
    return [bool((a == b).all()) for a, b in zip(one, two, strict=True)], bool((one[0] == torch.rand(50)).all())
