"""A bfloat16 weight whose gradient accumulates in float32."""

import torch
import torch_xla
from ir_text import ir

device = torch_xla.device()
x = torch.randn(4, 8).bfloat16().to(device)
w = torch.randn(8, 16).bfloat16().to(device).requires_grad_()
# README: begin
w.grad_dtype = torch.float32
for micro_batch in (x, x):
    (micro_batch @ w).sum().backward()
    torch_xla.sync()
(x @ w).sum().backward()  # the third one, added to w.grad
# README: end
print(ir(w.grad))
