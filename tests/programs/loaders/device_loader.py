"""Batches of nested containers through MpDeviceLoader, in their order."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def program(device):
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = DataLoader(data, batch_size=4)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    return [(x * 2, y) for x, y in loader], len(loader)
