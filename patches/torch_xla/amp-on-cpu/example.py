"""A linear layer under torch_xla's autocast, on CPU-XLA."""

import torch
import torch_xla
import torch_xla.amp
from ir_text import ir

device = torch_xla.device()
x = torch.randn(4, 16).to(device)
linear = torch.nn.Linear(16, 8, bias=False).to(device)
torch_xla.sync()
try:
    # README: begin
    with torch_xla.amp.autocast(device):
        y = linear(x)
    # README: end
    print(ir(y))
except AttributeError as error:
    print(f"AttributeError: {error}")
