"""all_reduce, all_gather and reduce_scatter of one rank, with gradients (pytorch/xla#2989)."""

import torch


def program(device):
    x = torch.arange(4.0).to(device).requires_grad_()
    if device.type == "xla":
        import torch_xla.core.xla_model as xm

        a = xm.all_reduce(xm.REDUCE_SUM, x)
        b = xm.all_gather(x)
        c = xm.reduce_scatter(xm.REDUCE_SUM, x, scale=1.0, scatter_dim=0, shard_count=1)
    else:
        a, b, c = x * 1, x * 1, x * 1
    (a.sum() + b.square().sum() + (c * 3).sum()).backward()
    return a, b, c, x.grad
