"""A linear layer cast to bfloat16 after it was built, as pytorch/xla#3718 reports it, and an embedding likewise."""

import torch
import torch_xla.core.xla_model as xm
from ir_text import ir

device = xm.xla_device()
x = torch.ones(22, 44, dtype=torch.bfloat16, device=device)
index = torch.tensor([1, 2]).to(device)
# README: begin
linear = torch.nn.Linear(44, 66, device=device, bias=False).to(torch.bfloat16)
embedding = torch.nn.Embedding(16, 4).to(device).to(torch.bfloat16)
print(embedding(index).dtype)
loss = linear(x).sum()
xm.mark_step()
loss.backward()
# README: end
print(ir(linear.weight.grad), end="")
