"""A custom Function with saved tensors, two results, one of them not differentiable."""

import torch


class TopOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        value, index = x.max(1)
        ctx.save_for_backward(index, x)
        ctx.mark_non_differentiable(index)
        return value, index

    @staticmethod
    def backward(ctx, g, _):
        index, x = ctx.saved_tensors
        return torch.zeros_like(x).scatter(1, index[:, None], g[:, None])


def program(device):
    x = torch.randn(3, 4).to(device).requires_grad_()
    value, index = TopOne.apply(x)
    value.square().sum().backward()
    return value, index, x.grad
