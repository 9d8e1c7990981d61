"""A dataset whose third item cannot be read."""

import threading

import torch
import torch_xla
from ir_text import ir
from torch_xla.distributed.parallel_loader import MpDeviceLoader

threading.excepthook = lambda _: None  # stock's thread prints a trace on stderr


class Damaged(torch.utils.data.Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        if i == 2:
            raise ValueError("item 2 is damaged")
        return torch.full((2,), float(i))


device = torch_xla.device()
# README: begin
total = torch.zeros(1, 2, device=device)
try:
    for batch in MpDeviceLoader(torch.utils.data.DataLoader(Damaged()), device):
        total = total + batch
    print("the epoch is over")
except ValueError as error:
    print(error)
print(ir(total), end="")
# README: end
