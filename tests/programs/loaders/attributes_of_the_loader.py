"""A wrapped loader has the data set and the sampler of the loader that it wraps, as accelerate asks for them."""

import torch
from torch.utils.data import DataLoader


def program(device):
    loader = DataLoader(torch.arange(6.0), batch_size=2)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    return len(loader.dataset), loader.batch_size, loader.drop_last, len(loader.sampler)
