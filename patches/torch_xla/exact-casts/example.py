"""A bfloat16 tensor that is widened to float32, transposed and cast back."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
x = torch.randn(128, 512).bfloat16().to(device)
torch_xla.sync()
# README: begin
y = x.float().t().to(torch.bfloat16)
# README: end
print(ir(y))
