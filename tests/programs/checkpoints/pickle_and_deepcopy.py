"""Tensors and modules of the device are pickled and deeply copied, gradients and all."""

import copy
import pickle

import torch
from torch import nn


def program(device):
    model = nn.Linear(3, 2).to(device)
    model(torch.ones(1, 3).to(device)).sum().backward()
    twin = copy.deepcopy(model)
    back = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        model.weight.zero_()
    return twin.weight, twin.weight.grad, back.weight, back.weight.device.type == device.type, model.weight
