"""A prefix product by scan of pairs, as recurrences of state-space models are."""

import torch


def step(carry, pair):
    a, b = pair
    carry = a * carry + b
    return carry, carry.clone()


def program(device):
    a, b = torch.rand(6, 2).to(device), torch.randn(6, 2).to(device)
    start = torch.zeros(2).to(device)
    if device.type == "xla":
        from torch_xla.experimental.scan import scan

        return scan(step, start, (a, b))
    ys = []
    for pair in zip(a, b, strict=True):
        start, y = step(start, pair)
        ys.append(y)
    return start, torch.stack(ys)
