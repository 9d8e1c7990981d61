"""Weight norm, spectral norm in evaluation and orthogonal parametrization."""

import torch
from torch import nn
from torch.nn.utils import parametrizations

TOLERANCE = 2e-3


def program(device):
    weight = parametrizations.weight_norm(nn.Linear(4, 3)).to(device)
    spectral = parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=5).to(device).eval()
    x = torch.randn(2, 4).to(device)
    (weight(x).sum() + spectral(x).sum()).backward()
    return weight(x), spectral(x), [p.grad for p in weight.parameters()]
