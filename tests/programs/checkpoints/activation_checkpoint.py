"""torch.utils.checkpoint, reentrant and not, with dropout off (pytorch/xla#5766)."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def program(device):
    results = []
    for reentrant in (True, False):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
        x = torch.randn(3, 4).to(device).requires_grad_()
        checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
        results.append((x.grad, [p.grad for p in model.parameters()]))
    return results
