"""AdamW of bfloat16 parameters: moments and the step's rounding."""

import torch
from torch import nn

TOLERANCE = 2e-2


def program(device):
    model = nn.Linear(16, 8).bfloat16().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(8, 16).bfloat16().to(device)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    moments = [optimizer.state[p]["exp_avg_sq"].dtype for p in model.parameters()]
    return list(model.parameters()), [str(dtype) for dtype in moments]
