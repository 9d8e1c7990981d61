"""A product of two bfloat16 tensors that are widened to float32 for it."""

import torch
import torch_xla
from ir_text import ir
from torch.nn.functional import linear

device = torch_xla.device()
x = torch.randn(128, 512).bfloat16().to(device)
w = torch.randn(256, 512).bfloat16().to(device)
torch_xla.sync()
# README: begin
y = linear(x.float(), w.float())
# README: end
print(ir(y))
