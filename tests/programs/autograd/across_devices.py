"""A graph that crosses from the CPU to the device and back."""

import torch


def program(device):
    x = torch.randn(3, requires_grad=True)
    w = torch.randn(3).to(device).requires_grad_()
    y = (x.to(device) * w).cpu().exp()
    y.sum().backward()
    return x.grad, w.grad, x.grad.device.type, w.grad.device.type == device.type
