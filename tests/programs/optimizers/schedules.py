"""A chain of warm-up and cosine, one-cycle, and reduction on a plateau that reads a loss of the device."""

import torch
from torch import nn
from torch.optim import lr_scheduler as schedules


def program(device):
    rates = []
    for make in (
        lambda o: schedules.SequentialLR(
            o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.CosineAnnealingLR(o, 5)], milestones=[3]
        ),
        lambda o: schedules.OneCycleLR(o, max_lr=1.0, total_steps=10),
        lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    ):
        weight = nn.Parameter(torch.ones(3).to(device))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        schedule = make(optimizer)
        for _ in range(6):
            loss = weight.detach().sum() * 0 + 1
            optimizer.step()
            schedule.step(loss) if isinstance(schedule, schedules.ReduceLROnPlateau) else schedule.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates
