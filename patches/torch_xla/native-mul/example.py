"""A product of two bfloat16 tensors, where the user asks for one in bfloat16."""

import contextlib

import torch
import torch_xla
from ir_text import ir
from torch_xla import experimental

device = torch_xla.device()
x, y = (torch.randn(128, 512).bfloat16().to(device) for _ in range(2))
torch_xla.sync()
native_mul = getattr(experimental, "native_mul_context", contextlib.nullcontext)  # stock has none
# README: begin
with native_mul():
    z = x * y
# README: end
print(ir(z))
