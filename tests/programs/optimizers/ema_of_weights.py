"""An exponential moving average of a model, as torch.optim.swa_utils makes it."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(8, 4).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) * x).mean().backward()
        optimizer.step()
        average.update_parameters(model)
    return dict(average.state_dict())
