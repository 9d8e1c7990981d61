"""A loop with accelerate's Accelerator: prepare, accumulate, clip and gather."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def program(device):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it is the process's, and that of one device

    model, data = nn.Linear(3, 1), TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    accelerator = Accelerator(cpu=device.type == "cpu", gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if device.type == "xla":
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2))
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.gather(loss.detach()).reshape(()), accelerator.unwrap_model(model).weight
