"""Attention whose heads are sharded."""

import numpy as np
import torch
import torch.nn.functional as F

DEVICES = 4


def program(device):
    q, k, v = (torch.randn(2, 4, 6, 8).to(device).requires_grad_() for _ in range(3))
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (1, 4), ("data", "model"))
        for t in (q, k, v):
            xs.mark_sharding(t, mesh, ("data", "model", None, None))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.square().sum().backward()
    return out, q.grad, v.grad
