"""A region with autocast off inside of one with it on, and a custom function."""

import torch

TOLERANCE = 3e-2


class Scale(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")
    def backward(ctx, g):
        return g * 2


def program(device):
    x, w = torch.randn(3, 4).to(device), torch.randn(4, 4).to(device).requires_grad_()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y = x @ w
        with torch.autocast(device.type, enabled=False):
            z = y.float() @ w
        again = torch.is_autocast_enabled(device.type)
    z.sum().backward()
    return str(y.dtype), z, again, w.grad
