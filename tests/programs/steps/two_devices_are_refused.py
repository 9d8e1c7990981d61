"""Operands on two devices raise, and the process lives on (pytorch/xla#8973)."""

import torch


def program(device):
    x = torch.ones(3).to(device)
    other = torch.ones(3, device="meta" if device.type == "cpu" else "cpu")
    said = []
    for call in (lambda: x + other, lambda: torch.cat([x, other]), lambda: x @ other):
        try:
            call()
            said.append("nothing")
        except (RuntimeError, NotImplementedError):
            said.append("raised")
    return said, x + 1
