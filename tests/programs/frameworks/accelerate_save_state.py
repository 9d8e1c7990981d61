"""accelerate saves and loads its state: model, optimizer, random numbers and loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader


def program(device):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it is the process's, and that of one device

    accelerator = Accelerator(cpu=device.type == "cpu")
    model = nn.Linear(3, 1).to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(torch.randn(4, 3), batch_size=2))
    for x in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
    saved = model.weight.detach().clone()
    accelerator.save_state("state")
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state("state")
    return model.weight - saved, saved
