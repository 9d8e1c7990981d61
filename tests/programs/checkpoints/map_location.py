"""torch.load with map_location to the device: a string, a device and a function."""

import torch


def program(device):
    torch.save({"w": torch.arange(6.0).view(2, 3), "step": 7}, "state.pt")
    loaded = [
        torch.load("state.pt", map_location=where, weights_only=True)
        for where in (device.type, device, lambda storage, _: storage)
    ]
    return [state["w"] for state in loaded], [state["w"].device.type == device.type for state in loaded[:2]]
