"""A network with batch norm is made on the meta device, materialized, trained and saved"""

import torch
from torch import nn


def program(device):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.to_empty(device=device)
    model[1].reset_parameters()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) * 0.1 + number)
    saved_before = model.state_dict()
    for step in range(2):
        model(torch.arange(15.0).view(5, 3).to(device).sin() * (step + 1)).pow(3).sum().backward()
    return saved_before, model.state_dict(), [parameter.grad for parameter in model[1].parameters()]
