"""Tensors that tests of several topics compute on."""

import torch
import torch_xla

DEVICE = torch_xla.device()
bf16, f16, f32, f64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
s8, s32 = torch.int8, torch.int32


def random(*shape, dtype=bf16, seed=0):
    """Normally distributed numbers on the CPU, the same for a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def leaf(cpu, grad_dtype=None):
    """A leaf on XLA, of device data; with a grad_dtype if one is given."""
    tensor = cpu.to(DEVICE).requires_grad_()
    if grad_dtype is not None:
        tensor.grad_dtype = grad_dtype
    return tensor
