"""A Generator of the device with a seed: rand, randn, randint and multinomial repeat (pytorch/xla#9159)."""

import torch


def program(device):
    def draws():
        g = torch.Generator(device=device).manual_seed(3)
        weights = torch.ones(4, 5, device=device)
        return [
            torch.rand(20, generator=g, device=device), torch.randn(20, generator=g, device=device),
            torch.randint(0, 100, (20,), generator=g, device=device), torch.multinomial(weights, 2, generator=g),
        ]  # fmt: skip

    one, two = draws(), draws()
    return [bool((a == b).all()) for a, b in zip(one, two, strict=True)], len(one[0].unique()) > 15
