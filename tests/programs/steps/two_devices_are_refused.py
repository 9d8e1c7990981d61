"""Operands on two devices of the accelerator raise, and the process lives on (pytorch/xla#8973)."""

import os

import torch

LATE = True


def program(device):
    os.environ["CPU_NUM_DEVICES"] = "2"
    here, there = ("cpu", "meta") if device.type == "cpu" else ("xla:0", "xla:1")
    x, other = torch.ones(3).to(here), torch.ones(3).to(there)
    said = []
    for call in (lambda: x + other, lambda: torch.cat([x, other]), lambda: x @ other):
        try:
            call().sum().item()
            said.append("nothing")
        except (RuntimeError, NotImplementedError):
            said.append("raised")
    return said, x + 1
