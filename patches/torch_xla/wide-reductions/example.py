"""The mean of a bfloat16 tensor, asked for in float32, and a softmax."""

import torch
import torch_xla
from ir_text import ir

x = torch.randn(64, 512).to(torch.bfloat16).to(torch_xla.device())
# README: begin
print(ir(x.mean(1, dtype=torch.float32)))
print(ir(x.softmax(1)))
# README: end
