"""An exception of a data set reaches the loop over MpDeviceLoader (pytorch/xla#8314)."""

import torch
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        if i == 2:
            raise ValueError("a broken sample")
        return torch.tensor(float(i))


def program(device):
    loader = DataLoader(Broken(), batch_size=1)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    return [batch.cpu() for batch in loader]
