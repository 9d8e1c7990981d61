"""safetensors writes a model of the device and reads it."""

import torch
from torch import nn


def program(device):
    from safetensors.torch import load_file, load_model, save_file, save_model

    model = nn.Linear(3, 2).bfloat16().to(device)
    save_model(model, "model.safetensors")
    other = nn.Linear(3, 2).bfloat16().to(device)
    load_model(other, "model.safetensors")
    save_file({"x": torch.arange(4).to(device)[::2].contiguous()}, "x.safetensors")
    return dict(other.state_dict()), load_file("x.safetensors")["x"], other.weight.device.type == device.type
