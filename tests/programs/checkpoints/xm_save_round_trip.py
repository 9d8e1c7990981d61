"""xm.save writes tensors of the CPU; without XLA torch.save does."""

import torch


def program(device):
    state = {"w": torch.ones(2, 2, dtype=torch.bfloat16).to(device), "n": 3, "list": [torch.arange(3).to(device)]}
    if device.type == "xla":
        import torch_xla.core.xla_model as xm

        xm.save(state, "state.pt")
    else:
        torch.save(state, "state.pt")
    loaded = torch.load("state.pt", weights_only=True)
    return loaded, loaded["w"].device.type
