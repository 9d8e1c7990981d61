"""A checkpointed relu on XLA, as pytorch/xla#5766 reports it."""

import torch
import torch_xla
from ir_text import ir
from torch.utils.checkpoint import checkpoint

device = torch_xla.device()
x = torch.randn(4, 8).to(device).requires_grad_()
torch_xla.sync()
# README: begin
try:
    y = checkpoint(torch.relu, x, use_reentrant=False)
    torch_xla.sync()
    y.sum().backward()
except AttributeError as error:
    print(error)
else:
    print(ir(x.grad), end="")
# README: end
