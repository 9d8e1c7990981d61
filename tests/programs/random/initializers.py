"""nn.init of parameters on the device: constants, and moments of random ones."""

import torch
from torch import nn

TOLERANCE = 6e-2


def program(device):
    results = []
    for init in (nn.init.xavier_uniform_, nn.init.kaiming_normal_, lambda w: nn.init.trunc_normal_(w, std=0.02)):
        w = torch.empty(200, 100, device=device)
        init(w)
        results += [w.std(), w.abs().max() > 0]
    eye, dirac = torch.empty(3, 4, device=device), torch.empty(4, 2, 3, device=device)
    q = nn.init.orthogonal_(torch.empty(4, 4, device=device))
    return results, nn.init.eye_(eye), nn.init.dirac_(dirac), q @ q.t()
