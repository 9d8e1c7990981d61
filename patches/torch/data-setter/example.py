"""A module cast to bfloat16 between the forward and the backward pass."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
linear = torch.nn.Linear(8, 16, bias=False).to(device)
x = torch.randn(4, 8).to(device)
torch_xla.sync()
# README: begin
loss = linear(x).sum()
linear.bfloat16()
loss.backward()
print(linear.weight.dtype, linear.weight.grad.dtype)
# README: end
print(ir(linear.weight.grad))
