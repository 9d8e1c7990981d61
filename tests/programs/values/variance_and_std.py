"""Variance with corrections, of one element, and of bfloat16."""

import torch


def program(device):
    x = torch.randn(4, 5).to(device).requires_grad_()
    y = x.var(1) + x.std(1, correction=0) + x.var(1, unbiased=False)
    y.sum().backward()
    return y, x.grad, x[:, :1].var(1), torch.var_mean(x, 0), x.detach().bfloat16().std()
