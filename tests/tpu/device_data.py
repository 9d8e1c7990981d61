"""What the programs of these tests compute on."""

import torch
import torch_xla


def data(*shape, dtype=torch.bfloat16):
    """Zeros that are device data: a parameter of the program, not a constant in it."""
    return torch.zeros(shape, dtype=dtype).to(torch_xla.device())
