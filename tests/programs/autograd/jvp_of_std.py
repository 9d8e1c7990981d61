"""Forward-mode derivatives of std, var, norm, softmax and logsumexp."""

import torch
from torch.func import jvp


def program(device):
    x, v = torch.randn(4).to(device), torch.randn(4).to(device)
    calls = (
        torch.std,
        torch.var,
        torch.linalg.vector_norm,
        lambda t: t.softmax(0),
        lambda t: t.logsumexp(0),
        torch.mean,
    )
    return [jvp(call, (x,), (v,)) for call in calls]
