"""A custom operator that writes to its argument, in a compiled function."""

import torch


@torch.library.custom_op("programs::fill", mutates_args={"x"})
def fill(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


def program(device):
    def call(x):
        fill(x, 3.0)
        return x * 2

    compiled = torch.compile(call, backend="openxla") if device.type == "xla" else call
    x = torch.zeros(3).to(device)
    return compiled(x), x
