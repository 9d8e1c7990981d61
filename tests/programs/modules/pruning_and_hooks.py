"""A pruned layer, and hooks before and after forward."""

import torch
from torch import nn
from torch.nn.utils import prune


def program(device):
    layer = nn.Linear(4, 3).to(device)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    seen = []
    layer.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    layer.register_forward_hook(lambda _, __, out: out + 1)
    layer.register_full_backward_hook(lambda _, i, o: seen.append((i[0], o[0])))
    x = torch.randn(2, 4).to(device).requires_grad_()
    out = layer(x)
    out.sum().backward()
    prune.remove(layer, "weight")
    return out, seen, layer.weight, layer.weight_mask if hasattr(layer, "weight_mask") else None
