"""Programs: loaders."""

from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset


def attributes_of_the_loader(device):
    """A wrapped loader has the data set and the sampler of the loader that it wraps, as accelerate asks for them."""
    loader = DataLoader(torch.arange(6.0), batch_size=2)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    return len(loader.dataset), loader.batch_size, loader.drop_last, len(loader.sampler)


def collate_and_pin(device):
    """A collate function with padding, non_blocking copies and pinned memory asked for."""
    rows = [torch.arange(n) + 1 for n in (3, 1, 4, 2)]
    loader = DataLoader(rows, batch_size=2, collate_fn=lambda b: pad_sequence(b, batch_first=True, padding_value=-1))
    return [batch.to(device, non_blocking=True) for batch in loader]


def device_loader(device):
    """Batches of nested containers through MpDeviceLoader, in their order."""
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = DataLoader(data, batch_size=4)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    return [(x * 2, y) for x, y in loader], len(loader)


def early_end_and_again(device):
    """A loop over MpDeviceLoader that ends early, and a second epoch."""
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


class _Broken(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        if i == 2:
            raise ValueError("a broken sample")
        return torch.tensor(float(i))


def exception_in_the_data_set(device):
    """An exception of a data set reaches the loop over MpDeviceLoader (pytorch/xla#8314)."""
    loader = DataLoader(_Broken(), batch_size=1)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    return [batch.cpu() for batch in loader]


def numpy_and_lists(device):
    """Tensors from numpy, lists and numbers, and back to numpy, with their dtypes."""
    a = torch.from_numpy(np.arange(6, dtype=np.int16).reshape(2, 3)).to(device)
    b = torch.as_tensor(np.array([1.5, 2.5]), device=device)
    c = torch.tensor([[True, False]], device=device)
    whole = torch.tensor(3, device=device)
    x = torch.asarray([1, 2], device=device)
    return (
        a * 2,
        b,
        c,
        x,
        (a.cpu().numpy() + 1).tolist(),
        whole.item(),
        [10, 20, 30, 40][whole],
        int(whole),
        float(b[0]),
    )


class _Sample(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


def named_batches_and_none(device):
    """Batches that are named tuples, and None where a collate function was left without items."""

    def collate(numbers):
        kept = torch.tensor([float(n) for n in numbers if n % 4 > 1])
        return _Sample(kept, kept > 5) if kept.numel() else None

    loader = DataLoader(range(10), batch_size=2, collate_fn=collate)
    if device.type == "xla":
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        loader = MpDeviceLoader(loader, device)
    return [None if batch is None else (batch.image * 2, batch.label) for batch in loader]
