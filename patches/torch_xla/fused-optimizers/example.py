"""A fused optimizer, which Hugging Face's Trainer asks for by default."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
w = torch.ones(4).to(device).requires_grad_()
w.grad = torch.full((4,), 2.0).to(device)
torch_xla.sync()
# README: begin
try:
    torch.optim.SGD([w], lr=0.1, fused=True).step()
except RuntimeError as error:
    print(str(error).split(":")[0])
else:
    print(ir(w), end="")
# README: end
