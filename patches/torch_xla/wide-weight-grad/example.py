"""The gradient of a bfloat16 linear layer, accumulated in float32."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
layer = torch.nn.Linear(512, 256, bias=False, dtype=torch.bfloat16).to(device)
x = torch.randn(128, 512).bfloat16().to(device)
torch_xla.sync()
# README: begin
layer.weight.grad_dtype = torch.float32
layer(x).sum().backward()
# README: end
print(ir(layer.weight.grad), end="")
