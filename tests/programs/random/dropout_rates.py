"""The share that dropout keeps, and its scale, in float32 and bfloat16; dropout of whole channels."""

import torch
import torch.nn.functional as F


def program(device):
    results = []
    for kind in (torch.float32, torch.bfloat16):
        x = torch.ones(20_000, dtype=kind, device=device)
        y = F.dropout(x, 0.1)
        results += [round(float((y > 0).float().mean()), 1), y.max()]
    z = F.dropout2d(torch.ones(2, 50, 3, 3, device=device), 0.5)
    same = (z.amax((2, 3)) == z.amin((2, 3))).all()
    return results, same, F.dropout(torch.ones(3, device=device), 0.5, training=False)
