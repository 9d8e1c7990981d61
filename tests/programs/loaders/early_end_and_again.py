"""A loop over MpDeviceLoader that ends early, and a second epoch."""

import torch
from torch.utils.data import DataLoader


def program(device):
    loader = DataLoader(torch.arange(6.0), batch_size=2)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    seen = []
    for batch in loader:
        seen.append(batch)
        if len(seen) == 2:
            break
    return seen, list(loader)
