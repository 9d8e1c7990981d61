"""A linear of a tensor with three dimensions, traced for a TPU."""

import os

os.environ["CASTOFF_TRACE_FOR"] = "TPU"

import torch
import torch_xla
from ir_text import ir
from torch.nn.functional import linear

device = torch_xla.device()
x = torch.randn(2, 64, 256).bfloat16().to(device)
w = torch.randn(512, 256).bfloat16().to(device)
torch_xla.sync()
# README: begin
y = linear(x, w)
# README: end
print(ir(y))
