"""torch.matmul of two bfloat16 tensors into a float32 one, as pytorch/xla#7160 reports it."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
q = torch.randn(128, 512).bfloat16().to(device)
k = torch.randn(128, 512).bfloat16().to(device)
out = torch.zeros(512, 512).to(device)
torch_xla.sync()
# README: begin
torch.matmul(q.t(), k, out=out)
# README: end
print(ir(out))
