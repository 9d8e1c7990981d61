"""Tensors that tests of several topics compute on."""

import torch
import torch_xla


def random(*shape, dtype=torch.bfloat16, seed=0):
    """Normally distributed numbers on the CPU, the same for a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def leaf(cpu, grad_dtype=None):
    """A leaf on XLA, of device data; with a grad_dtype if one is given."""
    tensor = cpu.to(torch_xla.device()).requires_grad_()
    if grad_dtype is not None:
        tensor.grad_dtype = grad_dtype
    return tensor
