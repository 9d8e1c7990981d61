"""A bfloat16 tensor and a float32 tensor of no dimensions: torch's result is bfloat16."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
x = torch.randn(4, 16).bfloat16().to(device)
shift = torch.tensor(0.5).to(device)
torch_xla.sync()
# README: begin
y = x + shift
print(y.dtype)
# README: end
print(ir(y))
